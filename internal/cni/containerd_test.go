package cni

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"

	"wherry.dev/internal/cgroup"
	"wherry.dev/test/images"
)

// containerd is a containerd that runs on a host of its own, with Wherry's plugins.
type containerd struct {
	t    *testing.T
	dir  string
	host string
	run  internalapi.RuntimeService
}

const pauseImage = "registry.test/pause:1"

func startContainerd(t *testing.T, cfg PluginsConfig) *containerd {
	t.Helper()
	for _, program := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs the package containerd")
		}
	}
	c := &containerd{t: t, dir: t.TempDir(), host: pluginHost(t)}
	socket := filepath.Join(c.dir, "s")
	conf := fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
address = %q
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = %q
conf_dir = %q
`, c.dir+"/root", c.dir+"/state", socket, pauseImage, cfg.BinDirs[0], cfg.ConfDir)
	if err := os.WriteFile(filepath.Join(c.dir, "config.toml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "containerd", "--config", filepath.Join(c.dir, "config.toml"))
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := inside(c.host, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.run != nil {
			_ = c.run.Close(context.WithoutCancel(t.Context()))
		}
		_ = cmd.Wait() // the test's context ended just before
		if t.Failed() {
			t.Log(log.String())
		}
	})
	c.importPause(socket)
	var err error
	if c.run, err = remote.NewRemoteRuntimeServiceBuilder().WithEndpoint("unix://" + socket).WithConnectionTimeout(30 * time.Second).Build(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *containerd) importPause(socket string) {
	c.t.Helper()
	root, err := images.Busybox()
	if err != nil {
		c.t.Fatal(err)
	}
	img, err := images.New(v1.Config{Entrypoint: []string{"/bin/sleep", "100000"}}, root)
	if err == nil {
		err = images.Save(filepath.Join(c.dir, "pause.tar"), img, pauseImage)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) { // nothing reports that it is up
		out, err := exec.CommandContext(c.t.Context(), "ctr", "-a", socket, "-n", "k8s.io", "images", "import", filepath.Join(c.dir, "pause.tar")).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("ctr: %v: %s", err, out)
		}
	}
}

// TestPluginsUnderContainerd runs pods on containerd's CRI with our executables.
func TestPluginsUnderContainerd(t *testing.T) {
	cfg, data := ownPlugins(t)
	path := filepath.Join(cfg.ConfDir, "10-own.conflist")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.Replace(string(doc), `"cniVersion":"1.1.0"`, `"cniVersion":"1.0.0"`, 1) // its libcni knows no newer one
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startContainerd(t, cfg)
	group := fmt.Sprintf("/wherry-test-%d", os.Getpid())
	t.Cleanup(func() {
		if err := cgroup.Remove(group); err != nil {
			t.Error(err)
		}
	})
	var ids, netns []string
	for i := range 2 {
		pod := &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("p", i), Namespace: "ns", Uid: fmt.Sprint("u", i)},
			LogDirectory: t.TempDir(), Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: group},
		}
		if i == 0 {
			pod.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: 4141}}
		}
		id, err := c.run.RunPodSandbox(t.Context(), pod, "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		st, err := c.run.PodSandboxStatus(t.Context(), id, true)
		if err != nil {
			t.Fatal(err)
		}
		if net := st.Status.Network; !strings.HasPrefix(net.GetIp(), "10.22.0.") || len(net.AdditionalIps) != 1 || !strings.HasPrefix(net.AdditionalIps[0].Ip, "fd00:22::") {
			t.Errorf("network status %+v", net)
		}
		_, rest, _ := strings.Cut(st.Info["info"], `"type":"network","path":"`)
		ns, _, ok := strings.Cut(rest, `"`)
		if !ok {
			t.Fatalf("no network namespace in %s", st.Info["info"])
		}
		netns = append(netns, ns)
	}
	serve(t, netns[0], ":8080", "pod")
	expect(t, netns[1], "10.22.0.1:4141", "pod ")
	expect(t, c.host, "127.0.0.1:4141", "pod ")
	for _, id := range ids {
		if err := c.run.StopPodSandbox(t.Context(), id); err != nil {
			t.Error(err)
		}
		if err := c.run.RemovePodSandbox(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left := hostState(t, c.host); len(left) > 0 {
		t.Errorf("left on the host: %q", left)
	}
	if left, err := filepath.Glob(filepath.Join(data, "own", "10.*")); err != nil || len(left) > 0 {
		t.Errorf("leases %v, %v", left, err)
	}
}
