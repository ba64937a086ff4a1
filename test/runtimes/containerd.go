package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"wherry.dev/internal/mount"
)

// containerdConfig is in version 2 of the format, which every containerd since 1.3 reads. OOM
// scores are restricted because a container may not be allowed to lower them. What is unprivileged is so
// by default since 2.0.
const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
[grpc]
  address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[5]q
    conf_dir = %[6]q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "runc"
`

// Containerd starts containerd.
func Containerd(ctx context.Context, o Options) (*Runtime, error) {
	r, pods, err := newOther("containerd")
	if err != nil {
		return nil, err
	}
	config, state, socket := filepath.Join(r.Dir, "config.toml"), filepath.Join(r.Dir, "state"), filepath.Join(r.Dir, "c.sock")
	removeFolders := foldersOfTheMachine("/run/containerd", "/run/containerd/s", "/run/containerd/runc",
		"/run/containerd/runc/k8s.io", "/var/lib/cni", "/var/lib/cni/results")
	r.teardown = func(ctx context.Context) error {
		removeFolders()
		return errors.Join(pods.remove(ctx), mount.UnmountUnder(state))
	}
	r.load = func(ctx context.Context, archive string) error {
		cmd := exec.CommandContext(ctx, beside(o.Path, "ctr"), "-a", socket, "-n", "k8s.io", "images", "import", archive)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
		return nil
	}
	text := fmt.Sprintf(containerdConfig, filepath.Join(r.Dir, "root"), state, socket, o.Pause, pods.plugins, pods.conf)
	if err := writeFiles(map[string]string{config: text}); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	cmd := exec.Command(o.Path, "--config", config, "--log-level", "warn") //nolint:noctx // ended by Close
	cmd.Env = besidePath(os.Environ(), o.Path)
	if r, err = r.start(ctx, cmd, socket); err != nil {
		return nil, err
	}
	return r.importAll(ctx, o.Archives)
}
