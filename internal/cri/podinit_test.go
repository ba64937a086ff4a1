package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2/ktesting"

	"wherry.dev/internal/cri/disk"
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

// The death of a pod's init was logged only when it could not be recorded, as if that were the
// error.
func TestDeathOfAPodsInitIsLogged(t *testing.T) {
	n := newNode(t)
	n.stop()
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	n.log = log
	n.openImages()
	n.start()
	for _, recorded := range []bool{true, false} {
		events := n.events.subscribe()
		p := n.pod(sharedPID)
		b, err := n.sandbox(p.id)
		n.must(err)
		status := filepath.Join(n.cfg.layout().SandboxState(), p.id, "status.json")
		if !recorded {
			n.must(os.Rename(status, status+".kept"))
			n.must(disk.WriteFile(filepath.Join(status, "x"), nil, 0o600)) // a folder where the file was
		}
		n.must(unix.Kill(b.InitPID(), unix.SIGKILL))
		for timeout, stopped := time.After(time.Minute), false; !stopped; {
			select {
			case e := <-events:
				stopped = e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
			case <-timeout:
				t.Fatal("the sandbox has not stopped")
			}
		}
		n.events.unsubscribe(events)
		var died, failed bool
		for line := range strings.Lines(log.GetSink().(ktesting.Underlier).GetBuffer().String()) {
			about := strings.Contains(line, p.id) && strings.Contains(line, p.cfg.GetMetadata().GetName())
			died = died || about && strings.HasPrefix(line, "INFO") && strings.Contains(line, "init has died")
			failed = failed || about && strings.HasPrefix(line, "ERROR") && strings.Contains(line, "Cannot record")
		}
		if !died || failed == recorded {
			t.Errorf("recorded %v: its death is in the log: %v, that it could not be recorded: %v", recorded, died, failed)
		}
		if !recorded {
			n.must(os.RemoveAll(status))
			n.must(os.Rename(status+".kept", status))
		}
	}
}
