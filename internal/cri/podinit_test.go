package cri

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func sharedPID(c *runtimeapi.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
}

func inSharedPID(cfg *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	return cfg
}

func TestSharedPIDNamespace(t *testing.T) {
	n := newNode(t)
	p := n.pod(sharedPID)
	a := p.start(inSharedPID(containerConfig("a", "sh", "-c", "sleep 1111")))
	b := p.start(inSharedPID(containerConfig("b", "sh", "-c", "(sleep 0.1 & exec true); sleep 2222")))
	if ps := p.exec(a, "ps"); !strings.Contains(ps, "sleep 2222") || !strings.Contains(ps, "/init") {
		t.Errorf("container a does not see b:\n%s", ps)
	}
	// The orphan of b exits and must not stay a zombie.
	p.exec(b, "sh", "-c", "while ps | grep -q '[s]leep 0.1'; do sleep 0.02; done")
	if ps := p.exec(a, "ps", "-o", "stat,args"); strings.Contains(ps, "\nZ") {
		t.Errorf("a zombie is left:\n%s", ps)
	}
	if _, _, err := p.run.ExecSync(t.Context(), a, []string{"ls", "/proc/1/root/"}, 0); err == nil {
		t.Error("a container reaches the root of the init")
	}
	n.restart()
	if st, err := n.run.PodSandboxStatus(t.Context(), p.id, false); err != nil || st.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("after a restart: %v, %v", st, err)
	}
	p.must(n.run.StopContainer(t.Context(), a, 0))
	if st := n.status(b); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the end of a ended b: %+v", st)
	}
}

func TestDeadInitStopsTheSandbox(t *testing.T) {
	n := newNode(t)
	events := n.events.subscribe()
	p := n.pod(sharedPID)
	c := p.start(inSharedPID(containerConfig("a", "sleep", "1000")))
	b, err := n.sandbox(p.id)
	n.must(err)
	n.must(unix.Kill(b.InitPID(), unix.SIGKILL))
	n.waitExit(c)
	for timeout := time.After(time.Minute); b.Ready(); {
		select {
		case <-events:
		case <-timeout:
			t.Fatal("the sandbox is still ready")
		}
	}
}
