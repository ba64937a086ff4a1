package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/image"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/oci"
	"wherry.dev/test/images"
	"wherry.dev/test/leaks"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) {
	if code, ok := runChild(); ok {
		os.Exit(code)
	}
	code := leaks.Watch(panics.Watch(m)).Run()
	if dir, err := archiveDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// node is an instance of the runtime for one test, and everything that it owns.
type node struct {
	t      testing.TB
	cfg    Config
	images *image.Store
	dir    string
	disks  []string // mounts of the test itself

	log klog.Logger // of the server, if the test reads it

	*Server
	run    internalapi.RuntimeService
	img    internalapi.ImageManagerService
	cancel context.CancelFunc
	done   chan error
}

var archiveDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "wherry-cri-test-") })

var busyboxArchive = sync.OnceValues(func() (string, error) {
	dir, err := archiveDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "busybox.tar")
	return path, images.SaveBusybox(path)
})

// newNode starts an instance that shares nothing with any other. At the end of the test it is
// torn down and the machine is searched for leaks.
func newNode(t testing.TB, change ...func(*Config)) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // for pods with a user namespace
		t.Fatal(err)
	}
	id := fmt.Sprintf("t%06x", rand.Uint32()&0xffffff)
	n := &node{t: t, dir: dir, cfg: Config{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "run"), Socket: filepath.Join(dir, "run", "cri.sock"),
		InstanceID: id,
		PodCIDR:    netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + rand.IntN(64)), byte(rand.IntN(64) * 4), 0}), 22),
	}}
	for _, c := range change {
		c(&n.cfg)
	}
	if err := mount.Tmpfs(n.cfg.State, 0o711, 0); err != nil {
		t.Fatal(err)
	}
	archive, err := busyboxArchive()
	if err != nil {
		t.Fatal(err)
	}
	n.openImages()
	if _, err := n.images.Import(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.destroy)
	n.start()
	return n
}

func (n *node) openImages() {
	n.t.Helper()
	var err error
	if n.images, err = image.Open(filepath.Join(n.dir, "images")); err != nil {
		n.t.Fatal(err)
	}
}

// start opens the instance and serves.
func (n *node) start() {
	n.t.Helper()
	start := n.t.Context()
	if n.log != (klog.Logger{}) {
		start = klog.NewContext(start, n.log)
	}
	s, err := New(start, n.cfg, n.images)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	n.Server, n.run, n.img, n.cancel, n.done = s, s.Runtime(), s.Images(), cancel, make(chan error, 1)
	go func() { n.done <- s.Run(ctx) }()
}

// stop closes the instance as the daemon does; what runs keeps running.
func (n *node) stop() {
	n.t.Helper()
	if n.cancel == nil {
		return
	}
	n.cancel()
	if err := <-n.done; err != nil {
		n.t.Errorf("Run: %v", err)
	}
	n.cancel = nil
	if err := n.images.Close(); err != nil {
		n.t.Error(err)
	}
}

// restart is stop followed by start, as with a new process.
func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.openImages()
	n.start()
}

func (n *node) destroy() {
	ctx := context.WithoutCancel(n.t.Context())
	n.stop()
	n.openImages()
	s, err := New(ctx, n.cfg, n.images)
	if err != nil {
		n.t.Error(err)
	} else if err := s.Teardown(ctx); err != nil {
		n.t.Error(err)
	}
	if err := n.images.Close(); err != nil {
		n.t.Error(err)
	}
	n.checkLeaks()
	if err := mount.UnmountUnder(n.dir); err != nil {
		n.t.Error(err)
	}
}

// checkLeaks looks for what the instance may have left on the machine.
func (n *node) checkLeaks() {
	points, err := mount.Under(n.dir)
	if err != nil {
		n.t.Error(err)
	}
	for _, p := range points {
		if p != n.cfg.State && !slices.Contains(n.disks, p) {
			n.t.Errorf("mount left: %s", p)
		}
	}
	for _, root := range []string{n.cfg.layout().Sandboxes(), n.cfg.layout().Containers(), n.cfg.layout().SandboxState(), n.cfg.layout().ContainerState()} {
		if ids, err := os.ReadDir(root); err == nil && len(ids) > 0 {
			n.t.Errorf("folders left in %s: %v", root, ids)
		}
	}
	if cgroup.Exists(n.cfg.cgroupRoot()) {
		n.t.Errorf("cgroup left: %s", n.cfg.cgroupRoot())
	}
	if links, err := os.ReadDir("/sys/class/net"); err != nil {
		n.t.Error(err)
	} else {
		for _, l := range links {
			if l.Name() == "wh-"+n.cfg.InstanceID {
				n.t.Errorf("bridge left: %s", l.Name())
			}
		}
	}
	if out, err := exec.Command("nft", "list", "table", "inet", "wherry-"+n.cfg.InstanceID).CombinedOutput(); err == nil {
		n.t.Errorf("nftables table left: %s", out)
	}
	n.eachProcess(func(pid int, cmdline string) { n.t.Errorf("process left: %d %s", pid, cmdline) })
}

// eachProcess visits the processes whose command line names a folder of the instance.
func (n *node) eachProcess(visit func(pid int, cmdline string)) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		n.t.Error(err)
	}
	for _, p := range procs {
		var pid int
		if _, err := fmt.Sscan(p.Name(), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		doc, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if err == nil && strings.Contains(string(doc), n.dir+"/") {
			visit(pid, strings.ReplaceAll(string(doc), "\x00", " "))
		}
	}
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

var podNumber struct {
	sync.Mutex
	n int
}

// podConfig returns a pod with a network of its own, as the kubelet would ask for it.
func (n *node) podConfig(change ...func(*runtimeapi.PodSandboxConfig)) *runtimeapi.PodSandboxConfig {
	podNumber.Lock()
	podNumber.n++
	i := podNumber.n
	podNumber.Unlock()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: fmt.Sprintf("pod-%d", i), Namespace: "default", Uid: fmt.Sprintf("uid-%d", i)},
		Hostname:     fmt.Sprintf("pod-%d", i),
		LogDirectory: filepath.Join(n.dir, "logs", fmt.Sprint(i)),
		Labels:       map[string]string{"pod": fmt.Sprint(i)},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: fmt.Sprintf("%s/pods/pod%d", n.cfg.cgroupRoot(), i),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
	for _, c := range change {
		c(cfg)
	}
	return cfg
}

// pod is a sandbox that runs.
type pod struct {
	*node
	id  string
	cfg *runtimeapi.PodSandboxConfig
}

func (n *node) pod(change ...func(*runtimeapi.PodSandboxConfig)) *pod {
	n.t.Helper()
	cfg := n.podConfig(change...)
	id, err := n.run.RunPodSandbox(n.t.Context(), cfg, "")
	n.must(err)
	return &pod{n, id, cfg}
}

func containerConfig(name string, cmd ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: "busybox:latest"},
		Command:  cmd,
		LogPath:  name + "/0.log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
				NoNewPrivs:       true,
			},
		},
	}
}

func (p *pod) create(cfg *runtimeapi.ContainerConfig) string {
	p.t.Helper()
	id, err := p.run.CreateContainer(p.t.Context(), p.id, cfg, p.cfg)
	p.must(err)
	return id
}

// start creates and starts a container.
func (p *pod) start(cfg *runtimeapi.ContainerConfig) string {
	p.t.Helper()
	id := p.create(cfg)
	p.must(p.run.StartContainer(p.t.Context(), id))
	return id
}

// sh runs a script as a container's first process.
func (p *pod) sh(name, script string) string {
	p.t.Helper()
	return p.start(containerConfig(name, "sh", "-c", script))
}

// waitExit waits until the container has exited and returns its status.
func (n *node) waitExit(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	c, err := n.container(id)
	n.must(err)
	select {
	case <-c.Exited():
	case <-time.After(30 * time.Second):
		n.t.Fatalf("container %s does not end", id)
	}
	return n.status(id)
}

func (n *node) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	resp, err := n.run.ContainerStatus(n.t.Context(), id, false)
	n.must(err)
	return resp.GetStatus()
}

// output runs a script in a container of its own and returns what it wrote to
// stdout, without the log's prefixes.
func (p *pod) output(cfg *runtimeapi.ContainerConfig) (string, *runtimeapi.ContainerStatus) {
	p.t.Helper()
	id := p.start(cfg)
	st := p.waitExit(id)
	return logText(p.t, st.GetLogPath(), "stdout"), st
}

// logText returns what one stream of a CRI log holds.
func logText(t testing.TB, path, stream string) string {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(doc)) {
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 {
			t.Fatalf("log line %q is not in CRI's format", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if f[1] != stream {
			continue
		}
		text := f[3]
		if f[2] == "P" {
			text = strings.TrimSuffix(text, "\n")
		}
		out.WriteString(text)
	}
	return out.String()
}

// exec runs a command in a container and returns its output.
func (n *node) exec(id string, cmd ...string) string {
	n.t.Helper()
	out, errOut, err := n.run.ExecSync(n.t.Context(), id, cmd, 5*time.Minute)
	if err != nil {
		n.t.Fatalf("exec %q: %v (%s)", cmd, err, errOut)
	}
	return string(out)
}

// touch makes a file that may make the container exit, and the command with it.
func (n *node) touch(id, path string) {
	n.t.Helper()
	_, errOut, err := n.run.ExecSync(n.t.Context(), id, []string{"touch", path}, 5*time.Minute)
	var exit interface{ ExitStatus() int }
	if err != nil && (!errors.As(err, &exit) || exit.ExitStatus() != 137) {
		n.t.Fatalf("touch %s: %v (%s)", path, err, errOut)
	}
}

func mustAddr(t testing.TB, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// bundle returns the bundle of a container, as far as its files go.
func (n *node) bundle(id string) oci.Bundle {
	return oci.Bundle{ID: id, Dir: filepath.Join(n.cfg.layout().ContainerState(), id)}
}

// cgroup returns the cgroup of a container.
func (n *node) cgroup(id string) string {
	n.t.Helper()
	resp, err := n.run.ContainerStatus(n.t.Context(), id, true)
	n.must(err)
	var info struct{ Cgroup string }
	n.must(json.Unmarshal([]byte(resp.Info["info"]), &info))
	return info.Cgroup
}

// waitFor waits for what has no event that a test could wait for.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: nothing after 30 s", what)
		}
	}
}
