package cri

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// wrapper is a runtime of another name: runc, with a log of its calls.
func wrapper(t *testing.T) (path, calls string) {
	t.Helper()
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, calls = filepath.Join(dir, "other-runtime"), filepath.Join(dir, "calls")
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\nexec %s \"$@\"\n", calls, runc)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, calls
}

// TestRuntimeHandlers: a RuntimeClass's handler decides which OCI runtime runs a pod.
func TestRuntimeHandlers(t *testing.T) {
	path, calls := wrapper(t)
	n := newNode(t, func(c *Config) {
		c.Runtimes = map[string]RuntimeConfig{"other": {Path: path, Options: []string{"--debug"}}, "silent": {Path: "/bin/true"}}
	})
	cfg := n.podConfig()
	id, err := n.run.RunPodSandbox(t.Context(), cfg, "other")
	n.must(err)
	p := &pod{n, id, cfg}
	if out, _ := p.output(containerConfig("c", "echo", "hi")); out != "hi\n" {
		t.Errorf("output %q", out)
	}
	doc, err := os.ReadFile(calls)
	n.must(err)
	if !strings.Contains(string(doc), "--debug --root=") || !strings.Contains(string(doc), " create ") {
		t.Errorf("the runtime was called so:\n%s", doc)
	}
	st, err := n.run.PodSandboxStatus(t.Context(), id, false)
	n.must(err)
	if st.GetStatus().GetRuntimeHandler() != "other" {
		t.Errorf("handler %q", st.GetStatus().GetRuntimeHandler())
	}
	_, err = n.run.RunPodSandbox(t.Context(), n.podConfig(), "nosuch")
	if err == nil || !strings.Contains(err.Error(), `no runtime for "nosuch" is configured; configured are: crun, other, runc, silent`) {
		t.Errorf("an unknown handler: %v", err)
	}
}

// TestRuntimeHandlerFeatures: a feature that a runtime may not have is not promised.
func TestRuntimeHandlerFeatures(t *testing.T) {
	path, _ := wrapper(t)
	n := newNode(t, func(c *Config) {
		c.Runtimes = map[string]RuntimeConfig{"other": {Path: path}, "silent": {Path: "/bin/true"}}
	})
	st, err := n.run.Status(t.Context(), false)
	n.must(err)
	features := map[string]*runtimeapi.RuntimeHandlerFeatures{}
	for _, h := range st.GetRuntimeHandlers() {
		features[h.GetName()] = h.GetFeatures()
	}
	for _, name := range []string{"", "crun", "runc", "other"} {
		if f := features[name]; !f.GetRecursiveReadOnlyMounts() || !f.GetUserNamespaces() {
			t.Errorf("handler %q: %v", name, f)
		}
	}
	if f := features["silent"]; f == nil || f.GetRecursiveReadOnlyMounts() || f.GetUserNamespaces() {
		t.Errorf("handler silent: %v", f)
	}
	if f := st.GetFeatures(); !f.GetSupplementalGroupsPolicy() || !f.GetMountOptions() {
		t.Errorf("features %v", f)
	}
}

// TestPodOfAHandlerThatIsGone: removing a runtime from the configuration must not keep the node
// from starting, nor its pods from being removed.
func TestPodOfAHandlerThatIsGone(t *testing.T) {
	path, _ := wrapper(t)
	n := newNode(t, func(c *Config) { c.Runtimes = map[string]RuntimeConfig{"other": {Path: path}} })
	cfg := n.podConfig(sharedPID)
	id, err := n.run.RunPodSandbox(t.Context(), cfg, "other")
	n.must(err)
	p := &pod{n, id, cfg}
	c := p.start(inSharedPID(containerConfig("c", "sleep", "1000")))
	n.cfg.Runtimes = nil
	n.restart()
	if _, err := n.run.CreateContainer(t.Context(), id, containerConfig("new", "true"), cfg); err == nil || !strings.Contains(err.Error(), "no runtime for") {
		t.Errorf("a new container: %v", err)
	}
	n.must(n.run.StopContainer(t.Context(), c, 0))
	n.must(n.run.RemovePodSandbox(t.Context(), id))
}

func TestUlimits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Annotations = map[string]string{
				"ulimits.nri.containerd.io/container.c": "- {type: RLIMIT_NOFILE, soft: 100, hard: 200}\n- {type: core, soft: 0, hard: 0}\n",
				"ulimits.nri.containerd.io/container.d": "- {type: nosuch, soft: 100, hard: 200}",
			}
		})
		out, _ := p.output(containerConfig("c", "sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -c"))
		if out != "100\n200\n0\n" {
			t.Errorf("limits %q", out)
		}
		if _, err := n.run.CreateContainer(t.Context(), p.id, containerConfig("d", "true"), p.cfg); err == nil || !strings.Contains(err.Error(), `ulimit "nosuch" does not exist`) {
			t.Errorf("a limit that there is not: %v", err)
		}
	})
}

func TestDefaultUlimits(t *testing.T) {
	n := newNode(t, func(c *Config) { c.DefaultUlimits = []string{"nofile=300:400", "core=0"} })
	p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Annotations = map[string]string{"ulimits.nri.containerd.io/container.c": "- {type: core, soft: 7, hard: 7}"}
	})
	if out, _ := p.output(containerConfig("c", "sh", "-c", "ulimit -Sn; ulimit -Hn; grep core /proc/self/limits | tr -s ' ' | cut -d' ' -f5")); out != "300\n400\n7\n" {
		t.Errorf("limits %q", out)
	}
	if out, _ := p.output(containerConfig("d", "sh", "-c", "ulimit -c")); out != "0\n" {
		t.Errorf("limit %q", out)
	}
}

// TestRuntimesUnderSystemd: systemd's variables for Wherry must not reach the runtimes.
func TestRuntimesUnderSystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "notify"))
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod(sharedPID)
		if out, _ := p.output(inSharedPID(containerConfig("c", "sh", "-c", "env | grep -c NOTIFY; ls /run"))); out != "0\n" {
			t.Errorf("the container sees %q", out)
		}
	})
}
