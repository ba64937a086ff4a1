package cri

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that the OCI runtime refused to create used to be created again and again: a job
// whose command does not exist never failed.
func TestWhatTheRuntimeRefusesFailsAtItsStart(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	refused := map[string]*runtimeapi.ContainerConfig{}
	for name, change := range map[string]func(*runtimeapi.ContainerConfig){
		"missing":   func(c *runtimeapi.ContainerConfig) { c.Command = []string{"/no/such/command"} },
		"not-in-x":  func(c *runtimeapi.ContainerConfig) { c.Command = []string{"nosuchcommand"} },
		"forbidden": func(c *runtimeapi.ContainerConfig) { c.Command = []string{"/etc/passwd"} },
		"workdir":   func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/etc/passwd" },
	} {
		cfg := containerConfig(name, "true")
		change(cfg)
		refused[name] = cfg
	}
	ids := map[string]string{}
	for name, cfg := range refused {
		ids[name] = p.create(cfg)
		if st := n.status(ids[name]); st.State != runtimeapi.ContainerState_CONTAINER_CREATED {
			t.Errorf("%s: made as %s", name, st.State)
		}
	}
	n.restart() // what must be remembered about it is on disk
	for name, id := range ids {
		err := n.run.StartContainer(t.Context(), id)
		if err == nil || !strings.Contains(err.Error(), "create: ") || strings.Contains(err.Error(), id) {
			t.Errorf("%s: started: %v", name, err)
		}
		st := n.waitExit(id)
		if st.ExitCode != 128 || st.Reason != "StartError" || st.StartedAt != 0 || st.FinishedAt < st.CreatedAt || !strings.HasSuffix(err.Error(), st.Message) {
			t.Errorf("%s: after %v: %+v", name, err, st)
		}
		if err := n.run.StartContainer(t.Context(), id); err == nil {
			t.Errorf("%s: started after its end", name)
		}
	}
	n.restart()
	for _, id := range ids {
		if st := n.status(id); st.ExitCode != 128 || st.Reason != "StartError" {
			t.Errorf("after a restart: %+v", st)
		}
		n.must(n.run.RemoveContainer(t.Context(), id))
	}
	// A container without a process can be stopped and removed without waiting.
	stopped, removed := p.create(refused["missing"]), p.create(refused["workdir"])
	n.must(n.run.StopContainer(t.Context(), stopped, 60))
	if st := n.waitExit(stopped); st.Reason != "StartError" {
		t.Errorf("after a stop: %+v", st)
	}
	n.must(n.run.RemoveContainer(t.Context(), removed))
}
