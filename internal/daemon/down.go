package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cni/mesh"
	"wherry.dev/internal/config"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/orphans"
	"wherry.dev/internal/kubelet/volume"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// stopPatience is how long a daemon may take to stop; its components drain their
// requests first.
const stopPatience = time.Minute

// instanceFile is where the configuration of the last start is kept, because `wherry down` is given
// no more than the folders.
func instanceFile(dataDir string) string { return filepath.Join(dataDir, "instance.json") }

// Down stops the daemon of an instance, or a runtime alone, if one runs, and then
// everything that ran on it: containers get a SIGTERM and ten seconds. Afterwards no
// process, mount, namespace, link, rule or cgroup of the instance is left; with purge its
// data is gone too. It is safe to repeat, after a crash at any moment, at the same time,
// and when no file of the instance is left: the names of the rest follow from the data
// dir's path. The cluster is told as farewell says, which needs its API server.
func Down(ctx context.Context, dataDir, runDir string, purge bool, farewell Farewell, progress func(string)) (err error) {
	if err := RequireRoot(); err != nil {
		return err
	}
	if err := checkRunDir(runDir, dataDir); err != nil {
		return err
	}
	lock, err := lockDown(ctx, dataDir, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	cfg, known, err := lastConfig(dataDir, runDir)
	if err != nil {
		return err
	}
	l, err := newLeaving(ctx, farewell, cfg, known, progress)
	if err != nil {
		return err
	}
	if err := l.drain(ctx); err != nil {
		return err
	}
	if err := l.leaveEtcd(ctx); err != nil {
		return err
	}
	if err := stopDaemon(ctx, dataDir, progress); err != nil {
		return err
	}
	if purge {
		if err := errors.Join(checkDataDir(dataDir), refuseForeign(dataDir)); err != nil {
			return err
		}
	}
	if err := takeDownAlone(ctx, dataDir, runDir, progress); err != nil {
		return err
	}
	if known {
		err = takeDown(ctx, cfg, progress)
	} else {
		err = clearNames(ctx, cfg, progress)
	}
	if err == nil {
		err = l.leave(ctx)
	}
	if err != nil || !purge {
		return err
	}
	progress("removing " + dataDir)
	return purgeData(cfg, progress)
}

// stopDaemon stops the daemon and waits until it is gone.
func stopDaemon(ctx context.Context, dataDir string, progress func(string)) error {
	pid, err := RunningPID(dataDir)
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop wherry (pid %d): %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	progress(fmt.Sprintf("stopping wherry (pid %d)", pid))
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop wherry (pid %d): %w", pid, err)
		}
		if ended, err := waitExit(ctx, fd, stopPatience); err != nil || ended {
			return err
		}
		progress(fmt.Sprintf("it did not stop within %s: killing it", stopPatience))
	}
	return fmt.Errorf("wherry (pid %d) is still running after SIGKILL", pid)
}

// waitExit waits on a pidfd, which becomes readable when its process ends.
func waitExit(ctx context.Context, fd int, patience time.Duration) (bool, error) {
	deadline := time.Now().Add(patience)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		// in slices, so that a user's interrupt is noticed
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(min(left, 200*time.Millisecond)/time.Millisecond)+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
		if n > 0 {
			return true, nil
		}
	}
}

// lastConfig returns the configuration of the instance's last start; known is false if there was
// none. One that cannot be read is taken to be the default.
func lastConfig(dataDir, runDir string) (cfg config.Config, known bool, err error) {
	cfg = config.Default()
	_, err = record.Read(instanceFile(dataDir), &cfg)
	corrupt, damaged := errors.AsType[*record.CorruptError](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case damaged:
		klog.Background().Error(corrupt, "The configuration of the last start is lost, using the defaults")
		cfg, known, err = config.Default(), true, nil
	default:
		known = err == nil
	}
	cfg.DataDir, cfg.RunDir = dataDir, runDir
	cfg.DefaultDirs()
	return cfg, known, err
}

// NodeName returns the name of an instance's node, as of its last start; "" if it has none.
func NodeName(dataDir string) string {
	var cfg config.Config
	if _, err := record.Read(instanceFile(dataDir), &cfg); err != nil || !cfg.Role.HasNode() {
		return ""
	}
	return cfg.NodeName
}

// takeDown removes what runs on the instance.
func takeDown(ctx context.Context, cfg config.Config, progress func(string)) error {
	return whileLocked(cfg.DataDir, cfg.RunDir, func() error {
		progress("stopping the pods")
		return removeRunning(ctx, cfg)
	})
}

// whileLocked runs a function while it holds the instance's lock, so that no daemon has the
// folders.
func whileLocked(dataDir, runDir string, do func() error) (err error) {
	lock, err := lockInstance(dataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	if _, err := openRunDir(runDir, dataDir); err != nil {
		return err
	}
	return do()
}

// clearNames removes whatever bears the name of an instance that has no record: it is new, or its
// files were removed.
func clearNames(ctx context.Context, cfg config.Config, progress func(string)) error {
	cc, err := criConfig(&cfg)
	if err != nil {
		return err
	}
	if err := errors.Join(cc.ClearNames(ctx), removeTables(cfg.InstanceID()), removeMesh(&cfg)); err != nil {
		return err
	}
	if err := mount.UnmountUnder(kubeletDir(cfg.DataDir)); err != nil {
		return err
	}
	owner, err := runDirOwner(cfg.RunDir)
	if err != nil {
		return err
	}
	if owner == cfg.DataDir {
		return mount.RemoveTree(cfg.RunDir)
	}
	if _, err := os.Stat(cfg.RunDir); err == nil {
		progress("leaving " + cfg.RunDir + ": there is no record of whose run dir it is")
	}
	return nil
}

// removeRunning removes everything that is not data. The caller holds the instance's lock, and
// nothing else of the instance runs.
func removeRunning(ctx context.Context, cfg config.Config) error {
	if err := teardownRuntime(ctx, cfg); err != nil {
		return err
	}
	if err := errors.Join(removeTables(cfg.InstanceID()), removeMesh(&cfg)); err != nil {
		return err
	}
	if err := mount.UnmountUnder(kubeletDir(cfg.DataDir)); err != nil {
		return err
	}
	// A disk that somebody else uses does not keep the rest from going.
	inUse := volume.GiveUpDisks(ctx, criconfig.Dirs{Root: kubeletDir(cfg.DataDir)})
	if err := orphans.ClearEnded(ctx, kubeletDir(cfg.DataDir)); err != nil {
		return err
	}
	if err := errors.Join(cgroup.Kill(cfg.CgroupRoot()), cgroup.Remove(cfg.CgroupRoot())); err != nil {
		return err
	}
	return errors.Join(inUse, mount.RemoveTree(cfg.RunDir))
}

// removeMesh removes the ways to other nodes' pods.
func removeMesh(cfg *config.Config) error {
	if cfg.ClusterCIDR == "" { // of an instance that was started before there were any
		return mesh.Remove(cfg.InstanceID(), nil)
	}
	return mesh.Remove(cfg.InstanceID(), cfg.ClusterNetworks())
}

func teardownRuntime(ctx context.Context, cfg config.Config) error {
	if cfg.RuntimeEndpoint != "" {
		return teardownExternalRuntime(ctx, &cfg)
	}
	cc, err := criConfig(&cfg)
	if err != nil {
		return err
	}
	return tearDown(ctx, cc, func() (*image.Store, error) { return openImages(&cfg) })
}

// tearDown removes all containers of a runtime, and everything it has on the machine.
func tearDown(ctx context.Context, cfg cri.Config, open func() (*image.Store, error)) (err error) {
	if vacant, err := cfg.TeardownVacant(ctx); vacant || err != nil {
		return err
	}
	images, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, images.Close()) }()
	s, err := cri.New(ctx, cfg, images)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := stopContainers(ctx, s.Runtime(), nil); err != nil {
		return err
	}
	return s.Teardown(ctx)
}

// stopGrace is how many seconds a container has between SIGTERM and SIGKILL.
const stopGrace = 10

// stopContainers stops all containers with the labels in parallel, with a grace period.
func stopContainers(ctx context.Context, rt internalapi.RuntimeService, labels map[string]string) error {
	running := runtimeapi.ContainerState_CONTAINER_RUNNING
	list, err := rt.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: labels, State: &runtimeapi.ContainerStateValue{State: running}})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range list {
		g.Go(func() error { return rt.StopContainer(ctx, c.Id, stopGrace) })
	}
	return g.Wait()
}

// kubeletDir is the kubelet's root dir.
func kubeletDir(dataDir string) string { return filepath.Join(dataDir, "kubelet") }

// purgeData removes the data, and the logs of the pods that were there.
func purgeData(cfg config.Config, progress func(string)) error {
	pods, err := os.ReadDir(filepath.Join(kubeletDir(cfg.DataDir), "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, p := range pods {
		logs, err := filepath.Glob(filepath.Join(cfg.PodLogsDir, "*_"+p.Name()))
		if err != nil {
			return err
		}
		for _, l := range logs {
			errs = append(errs, removeLinks(containerLogsDir(&cfg), l), safepath.RemoveAll(l))
		}
	}
	errs = append(errs, removeData(cfg.DataDir, progress), removeEmpty(cfg.ManifestDir), removeEmpty(filepath.Dir(config.DefaultManifestDir)))
	return errors.Join(errs...)
}

// removeData removes the data dir, except for what others have put there. If the data dir, or a
// folder in it, is a disk of its own, it removes what is on that disk.
func removeData(dir string, progress func(string)) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	var others []string
	for _, e := range entries {
		if !isOurs(e.Name()) {
			others = append(others, e.Name())
			continue
		}
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			errs = append(errs, safepath.Empty(path))
		}
		errs = append(errs, removeUnlessDisk(path))
	}
	if len(others) > 0 {
		progress(fmt.Sprintf("leaving %s in %s: not Wherry's", some(others), dir))
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, removeUnlessDisk(dir))...)
}

// removeUnlessDisk removes a file, or an empty folder unless something is mounted there.
func removeUnlessDisk(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	if left, lerr := os.ReadDir(path); lerr == nil && len(left) > 0 {
		mounted, merr := mount.Under(path) // disks in it, which stay, though what is on them does not
		if merr == nil && len(mounted) > 0 {
			return nil
		}
	}
	return err
}

// removeEmpty removes a folder that `wherry up` may have made, unless there is something in it.
func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if dir == "" || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// removeLinks removes the links in dir that lead into a pod's logs.
func removeLinks(dir, logs string) error {
	links, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, l := range links {
		path := filepath.Join(dir, l.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, logs+"/") {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
