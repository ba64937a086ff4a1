package runtimes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"wherry.dev/internal/mount"
)

// Docker starts dockerd, from the folder of cri-dockerd or from PATH, and cri-dockerd, whose path is
// that of the options and which needs socat to forward ports. dockerd changes nothing of the
// machine's network: pods have that of the CNI plugins.
func Docker(ctx context.Context, o Options) (*Runtime, error) {
	r, pods, err := newOther("docker")
	if err != nil {
		return nil, err
	}
	removeFolders := foldersOfTheMachine("/run/docker", "/run/docker/plugins", "/run/containerd", "/run/containerd/s")
	r.teardown = func(ctx context.Context) error {
		removeFolders()
		return errors.Join(pods.remove(ctx), mount.UnmountUnder(r.Dir))
	}
	d := dockerClient(filepath.Join(r.Dir, "d.sock"))
	defer d.CloseIdleConnections()
	r.load = d.load
	if err := r.dockerd(ctx, d, o); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	if _, err := r.importAll(ctx, o.Archives); err != nil {
		return nil, err
	}
	socket := filepath.Join(r.Dir, "c.sock")
	cmd := exec.Command(o.Path, //nolint:noctx // ended by Close
		"--container-runtime-endpoint", "unix://"+socket, "--docker-endpoint", "unix://"+d.socket,
		"--cri-dockerd-root-directory", filepath.Join(r.Dir, "cri"), "--streaming-bind-addr", "127.0.0.1:0",
		"--network-plugin", "cni", "--cni-bin-dir", pods.plugins, "--cni-conf-dir", pods.conf,
		"--cni-cache-dir", filepath.Join(r.Dir, "cni-cache"), "--pod-infra-container-image", o.Pause, "--log-level", "warn")
	return r.start(ctx, cmd, socket)
}

// dockerd starts dockerd and returns when it answers.
func (r *Runtime) dockerd(ctx context.Context, d *docker, o Options) error {
	config, runc := filepath.Join(r.Dir, "daemon.json"), filepath.Join(r.Dir, "runc.sh")
	text, err := json.Marshal(map[string]any{
		"data-root": filepath.Join(r.Dir, "data"), "exec-root": filepath.Join(r.Dir, "exec"),
		"pidfile": filepath.Join(r.Dir, "pid"), "deprecated-key-path": filepath.Join(r.Dir, "key.json"),
		"hosts": []string{"unix://" + d.socket}, "storage-driver": "overlay2", "cgroup-parent": r.Cgroup,
		"exec-opts": []string{"native.cgroupdriver=cgroupfs"}, "log-level": "warn",
		"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false,
		"ip-masq": false, "userland-proxy": false,
		"runtimes": map[string]any{"capped": map[string]string{"path": runc}}, "default-runtime": "capped",
		"oom-score-adjust": 0,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(writeCappedRunc(runc), writeFiles(map[string]string{config: string(text)})); err != nil {
		return err
	}
	cmd := exec.Command(beside(o.Path, "dockerd"), "--config-file", config) //nolint:noctx // ended by Close
	cmd.Env = besidePath(os.Environ(), o.Path)
	p, err := r.run(cmd)
	if err != nil {
		return err
	}
	if err := p.await(ctx, d.ping); err != nil {
		return fmt.Errorf("dockerd does not answer: %w\n%s", err, r.Log())
	}
	return nil
}

// docker is a client of dockerd's own API.
type docker struct {
	http.Client
	socket string
}

func dockerClient(socket string) *docker {
	d := &docker{socket: socket}
	d.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	return d
}

func (d *docker) do(ctx context.Context, method, path string, body io.Reader) (err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return err
	}
	resp, err := d.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("docker: %s: %s", resp.Status, text)
	}
	return err
}

func (d *docker) ping(ctx context.Context) error {
	return d.do(ctx, http.MethodGet, "/_ping", http.NoBody)
}

// load adds the images of an archive as `docker load` does.
func (d *docker) load(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return d.do(ctx, http.MethodPost, "/images/load?quiet=1", f)
}
