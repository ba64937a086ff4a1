// Package sandbox has the life of one sandbox, a pod's shared environment: its record, files and
// namespaces, its network and the init of its PID namespace, from Plan to Clear. It knows nothing of the
// containers in it.
package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/stats"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/oci"
)

// Handlers find the OCI runtimes by the names of their handlers (RuntimeClass).
type Handlers interface {
	Get(name string) (*oci.Runtime, error)
	// Former also finds the runtime of a handler that is no longer configured.
	Former(ctx context.Context, name string) (*oci.Runtime, error)
}

// Env is what the sandboxes of an instance are made with.
type Env struct {
	Layout   disk.Layout
	Cgroups  string // parent of the cgroups that no caller has placed elsewhere
	Monitors string // cgroup in which conmons start
	Boot     string // ID of the machine's boot
	Handlers Handlers
	// Network connects them. It is opened with the sandboxes that are loaded already.
	Network *cni.Network
}

// phase is the phase of a sandbox, as its record says.
//
//	making ── RunPodSandbox done ──▶ ready ── StopPodSandbox, or a reboot ──▶ stopped ── removed
//	   └──────────── failed, or found after a crash ──────────────────────────────────▶ removed
type phase string

const (
	phaseMaking  phase = "making"
	phaseReady   phase = "ready"
	phaseStopped phase = "stopped"
)

// Record is what a sandbox is made from: sandboxes/<id>/sandbox.json in the durable
// folder, written before anything else is done, and never changed.
type Record struct {
	ID        string                                                                  `json:"id"`
	Boot      string                                                                  `json:"boot"` // ID of the machine's boot in which it was made
	Config    disk.Message[runtimeapi.PodSandboxConfig, *runtimeapi.PodSandboxConfig] `json:"config"`
	Handler   string                                                                  `json:"handler"`
	CreatedAt int64                                                                   `json:"createdAt"`           // ns
	OwnCgroup bool                                                                    `json:"ownCgroup,omitempty"` // the parent cgroup is ours to remove
}

// Status is the current status of a sandbox: status.json in the state folder, because after a
// reboot every sandbox is stopped.
type Status struct {
	Phase   phase           `json:"phase"`
	Network *cni.Attachment `json:"network,omitempty"`
	PIDNS   bool            `json:"pidns,omitempty"` // an init holds a PID namespace
}

// Sandbox is a pod's shared environment.
type Sandbox struct {
	env      *Env
	ID       string
	root     string // durable folder
	state    string // folder that a reboot empties
	Key      string // identifies it to the kubelet; see the function Key
	rec      Record
	Config   *runtimeapi.PodSandboxConfig
	Networks bool // it has its own network namespace

	// Op is write-locked while the sandbox is made, stopped or removed, and read-locked while a
	// container is created or started in it.
	Op sync.RWMutex

	mu     sync.Mutex // guards status
	status Status

	cpu stats.CPURate
}

// Plan returns the sandbox that a request describes. Nothing of it exists yet.
func (e *Env) Plan(req *runtimeapi.RunPodSandboxRequest) *Sandbox {
	rec := Record{
		ID: disk.NewID(), Boot: e.Boot, Handler: req.GetRuntimeHandler(), CreatedAt: time.Now().UnixNano(),
		OwnCgroup: req.GetConfig().GetLinux().GetCgroupParent() == "",
	}
	rec.Config.M = proto.CloneOf(req.GetConfig())
	return e.newSandbox(rec)
}

func (e *Env) newSandbox(rec Record) *Sandbox {
	ns := rec.Config.M.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return &Sandbox{
		env: e,
		ID:  rec.ID, rec: rec, Config: rec.Config.M, Key: Key(rec.Config.M.GetMetadata()),
		root:     filepath.Join(e.Layout.Sandboxes(), rec.ID),
		state:    filepath.Join(e.Layout.SandboxState(), rec.ID),
		Networks: ns.GetNetwork() != runtimeapi.NamespaceMode_NODE,
		status:   Status{Phase: phaseMaking},
	}
}

func (b *Sandbox) recordPath() string { return filepath.Join(b.root, "sandbox.json") }

func (b *Sandbox) nsDir() string { return filepath.Join(b.state, "ns") }

func (b *Sandbox) netnsPath() string { return netns.Path(b.nsDir(), netns.Net) }

func (b *Sandbox) statusPath() string { return filepath.Join(b.state, "status.json") }

func (b *Sandbox) pidnsPath() string { return filepath.Join(b.nsDir(), "pid") }

// shareDir returns the folder of what the pod's containers share: /dev/shm and files of /etc.
func (b *Sandbox) shareDir() string { return filepath.Join(b.state, "share") }

func (b *Sandbox) shmDir() string { return filepath.Join(b.SharedDir(), "shm") }

func (b *Sandbox) etcFile(name string) string { return filepath.Join(b.SharedDir(), name) }

// SharedDir returns the folder of what the containers of a running sandbox share. Older versions
// of Wherry have it all in the state folder.
func (b *Sandbox) SharedDir() string {
	if _, err := os.Lstat(b.shareDir()); err != nil {
		return b.state
	}
	return b.shareDir()
}

// current returns a copy of the status.
func (b *Sandbox) current() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// update changes the status, on disk first.
func (b *Sandbox) update(change func(*Status)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.status
	change(&next)
	if err := disk.Save(b.statusPath(), next); err != nil {
		return fmt.Errorf("record sandbox %s: %w", b.ID, err)
	}
	b.status = next
	return nil
}

// Ready reports whether containers can run in it.
func (b *Sandbox) Ready() bool { return b.current().Phase == phaseReady }

// Handler returns the name of its runtime handler.
func (b *Sandbox) Handler() string { return b.rec.Handler }

// Stopped reports whether nothing of it runs any more.
func (b *Sandbox) Stopped() bool { return b.current().Phase == phaseStopped }

// HalfMade reports whether it was being made when somebody gave up.
func (b *Sandbox) HalfMade() bool { return b.current().Phase == phaseMaking }

// SharesPIDs reports whether an init holds a PID namespace for its containers.
func (b *Sandbox) SharesPIDs() bool { return b.current().PIDNS }

// NoteStop records that nothing of it runs any more.
func (b *Sandbox) NoteStop() error {
	return b.update(func(st *Status) { st.Phase = phaseStopped })
}

// UID returns the UID of its pod.
func (b *Sandbox) UID() string { return b.Config.GetMetadata().GetUid() }

// Key returns what identifies a sandbox to the kubelet, which raises the attempt whenever
// it wants a new one.
func Key(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("sandbox %s/%s (%s) attempt %d", m.GetNamespace(), m.GetName(), m.GetUid(), m.GetAttempt())
}

// CgroupParent returns the cgroup in which the sandbox's containers get theirs.
func (b *Sandbox) CgroupParent() string {
	if p := b.Config.GetLinux().GetCgroupParent(); p != "" {
		return p
	}
	return b.env.Cgroups + "/" + b.ID
}
