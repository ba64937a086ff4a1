package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"wherry.dev/internal/mount"
)

// pluginDirs are where CNI plugins are installed: by Debian's package, and by everybody else.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// containerdConfig is in version 2 of the format, which every containerd since 1.3 reads. OOM
// scores are restricted because a container may not be allowed to lower them.
const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
[grpc]
  address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  restrict_oom_score_adj = true
  disable_apparmor = true
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

const conflist = `{"cniVersion": "0.4.0", "name": %[1]q, "plugins": [{
  "type": "bridge", "bridge": %[1]q, "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "dataDir": %[2]q, "ranges": [[{"subnet": %[3]q}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}
`

// ContainerdOptions say which containerd to start, and with what.
type ContainerdOptions struct {
	// Path of containerd; its shim and ctr are taken from the same folder, if they are there.
	Path string
	// Pause is the image, from one of the archives, that sandboxes run.
	Pause    string
	Archives []string
}

// Containerd starts containerd with the bridge plugin, as people run it.
func Containerd(ctx context.Context, o ContainerdOptions) (*Runtime, error) {
	plugins := ""
	for _, d := range pluginDirs {
		if _, err := os.Stat(filepath.Join(d, "bridge")); err == nil {
			plugins = d
			break
		}
	}
	if plugins == "" {
		return nil, fmt.Errorf("containerd needs the CNI plugin bridge, which is in none of %s: apt-get install containernetworking-plugins", strings.Join(pluginDirs, ", "))
	}
	dir, err := os.MkdirTemp("", "containerd-rt-")
	if err != nil {
		return nil, err
	}
	id := newID()
	state, socket, conf := filepath.Join(dir, "state"), filepath.Join(dir, "c.sock"), filepath.Join(dir, "net.d")
	r := &Runtime{Dir: dir, Cgroup: "/containerd-" + id}
	r.teardown = func(ctx context.Context) error {
		err := exec.CommandContext(ctx, "ip", "link", "del", id).Run()
		if _, ok := errors.AsType[*exec.ExitError](err); ok {
			err = nil // there was no pod
		}
		return errors.Join(err, mount.UnmountUnder(state))
	}
	files := map[string]string{
		filepath.Join(dir, "config.toml"):   fmt.Sprintf(containerdConfig, filepath.Join(dir, "root"), state, socket, o.Pause, plugins, conf),
		filepath.Join(conf, "net.conflist"): fmt.Sprintf(conflist, id, filepath.Join(dir, "cni"), network()),
	}
	for path, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return nil, errors.Join(err, r.Close(ctx))
		}
	}
	cmd := exec.Command(o.Path, "--config", filepath.Join(dir, "config.toml"), "--log-level", "warn") //nolint:noctx // ended by Close
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(o.Path)+":"+os.Getenv("PATH"))
	if r, err = r.start(ctx, cmd, socket); err != nil {
		return nil, err
	}
	r.load = func(ctx context.Context, archive string) error {
		cmd := exec.CommandContext(ctx, besideOf(o.Path, "ctr"), "--address", socket, "--namespace", "k8s.io", "images", "import", archive)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
		return nil
	}
	for _, a := range o.Archives {
		if err := r.Import(ctx, a); err != nil {
			return nil, errors.Join(err, r.Close(ctx))
		}
	}
	return r, nil
}

// besideOf returns the program in the same folder, or else the one in PATH.
func besideOf(path, name string) string {
	if full, err := exec.LookPath(path); err == nil {
		if p := filepath.Join(filepath.Dir(full), name); fileExists(p) {
			return p
		}
	}
	return name
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
