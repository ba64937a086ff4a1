package runtimes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/mount"
	"wherry.dev/test/registries"
)

// crioConfig keeps everything that CRI-O writes below one folder. conmon has no systemd to put it
// anywhere else. Containers have the capabilities and sysctls that other runtimes give them by
// default; CRI-O's own defaults are fewer.
const crioConfig = `[crio]
root = "%[1]s/root"
runroot = "%[1]s/run"
storage_driver = "overlay"
log_dir = "%[1]s/logs"
version_file = "%[1]s/version"
clean_shutdown_file = "%[1]s/clean.shutdown"
[crio.api]
listen = "%[1]s/c.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = %[2]q
namespaces_dir = "%[1]s/ns"
container_exits_dir = "%[1]s/exits"
container_attach_socket_dir = "%[1]s/attach"
hooks_dir = []
decryption_keys_path = "%[1]s/keys"
enable_criu_support = false
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID",
  "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"]
default_sysctls = ["net.ipv4.ping_group_range=0 2147483647", "net.ipv4.ip_unprivileged_port_start=0"]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = %[3]q
runtime_root = "%[1]s/runc"
monitor_cgroup = "pod"
[crio.image]
pause_image = %[4]q
pause_command = ""
signature_policy = "%[1]s/policy.json"
signature_policy_dir = "%[1]s/policies"
[crio.network]
network_dir = %[5]q
plugin_dirs = [%[6]q]
[crio.nri]
enable_nri = false
`

// crioCache is where CRI-O remembers which registry has which layer; no setting moves it.
const crioCache = "/var/lib/containers/cache"

// crioRegistries are the hosts of the images that tests load: CRI-O takes images only from
// registries.
var crioRegistries = []string{"registry-1.docker.io", "index.docker.io", "docker.io", "wherry.dev"}

// CRIO starts CRI-O; pinns may be in the same folder.
func CRIO(ctx context.Context, o Options) (*Runtime, error) {
	r, pods, err := newOther("crio")
	if err != nil {
		return nil, err
	}
	regs, err := registries.Start(ctx, filepath.Join(r.Dir, "pki"), crioRegistries, nil)
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	cached := fileExists(crioCache)
	removeFolders := foldersOfTheMachine("/etc/crio", "/etc/crio/auth", "/var/lib/cni", "/var/lib/cni/results",
		"/var/lib/containers")
	r.teardown = func(ctx context.Context) error {
		errs := []error{pods.remove(ctx), mount.UnmountUnder(r.Dir), regs.Close()}
		if !cached {
			errs = append(errs, os.RemoveAll(crioCache))
		}
		removeFolders()
		return errors.Join(errs...)
	}
	r.load = func(ctx context.Context, archive string) error { return r.pullAll(ctx, regs, archive) }
	config, runc := filepath.Join(r.Dir, "crio.conf"), filepath.Join(r.Dir, "runc.sh")
	text := fmt.Sprintf(crioConfig, r.Dir, beside(o.Path, "pinns"), runc, o.Pause, pods.conf, pods.plugins)
	err = errors.Join(writeCappedRunc(runc), writeFiles(map[string]string{
		config:                              text,
		filepath.Join(r.Dir, "policy.json"): `{"default": [{"type": "insecureAcceptAnything"}]}`,
	}))
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	cmd := exec.Command(o.Path, "--config", config, "--config-dir", "", //nolint:noctx // ended by Close
		"--log-level", "warn")
	cmd.Env = append(besidePath(regs.Env(os.Environ()), o.Path), "HOME="+r.Dir)
	if r, err = r.start(ctx, cmd, filepath.Join(r.Dir, "c.sock")); err != nil {
		return nil, err
	}
	return r.importAll(ctx, o.Archives)
}

// pullAll makes the runtime pull the images of an archive, under their names, from registries.
func (r *Runtime) pullAll(ctx context.Context, regs *registries.Registries, archive string) error {
	list, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil {
		return err
	}
	client := runtimeapi.NewImageServiceClient(r.Conn)
	for _, img := range list {
		for _, n := range img.RepoTags {
			tag, err := name.NewTag(n)
			if err != nil {
				return err
			}
			img, err := tarball.ImageFromPath(archive, &tag)
			if err != nil {
				return err
			}
			if err := regs.Add(ctx, tag.RepositoryStr()+":"+tag.TagStr(), img); err != nil {
				return err
			}
			ref := &runtimeapi.ImageSpec{Image: tag.RegistryStr() + "/" + tag.RepositoryStr() + ":" + tag.TagStr()}
			if _, err := client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: ref}); err != nil {
				return fmt.Errorf("pull %s: %w", n, err)
			}
		}
	}
	return nil
}
