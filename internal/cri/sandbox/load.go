package sandbox

import (
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cri/disk"
)

// Load reads a sandbox from disk. One whose namespaces are gone (the machine was rebooted) is stopped;
// one that was being made is half made.
func (e *Env) Load(log klog.Logger, id string) (*Sandbox, error) {
	var rec Record
	ok, err := disk.Load(log, filepath.Join(e.Layout.Sandboxes(), id, "sandbox.json"), &rec)
	if err != nil {
		return nil, err
	}
	if !ok || rec.Config.M == nil || rec.ID != id {
		// Wherry was killed while it wrote the record, before it did anything else; or the
		// machine crashed, and nothing runs any more.
		return e.Unknown(id), nil
	}
	b := e.newSandbox(rec)
	ok, err = disk.Load(log, b.statusPath(), &b.status)
	if err != nil {
		return nil, err
	}
	if !ok {
		b.status = Status{Phase: phaseMaking}
		if rec.Boot != e.Boot {
			b.status.Phase = phaseStopped
		}
		return b, nil
	}
	if b.status.Phase == phaseReady {
		alive, err := b.alive()
		if err != nil {
			return nil, err
		}
		if !alive {
			b.status.Phase = phaseStopped
		}
	}
	return b, nil
}

// Unknown stands for a sandbox whose record cannot be read: everything that a sandbox can have is
// looked for and removed.
func (e *Env) Unknown(id string) *Sandbox {
	rec := Record{ID: id, OwnCgroup: true}
	rec.Config.M = &runtimeapi.PodSandboxConfig{}
	return e.newSandbox(rec)
}
