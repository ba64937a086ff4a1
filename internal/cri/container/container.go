// Package container has the life of one container: its record, root file system and spec, its start and
// end, its log and the commands in it, from Plan to Remove.
package container

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/confine"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/cri/stats"
	"wherry.dev/internal/image"
	"wherry.dev/internal/oci"
)

// Images is what containers need of the image store.
type Images interface {
	Lookup(refOrID string) (image.Image, bool)
	Layers(imageID string) ([]string, error)
	Hold(imageID, owner string) error
	Release(owner string)
}

// Env is what the containers of an instance are made with.
type Env struct {
	Layout      disk.Layout
	Cgroups     string // parent of the cgroups that no caller has placed elsewhere
	Monitors    string // cgroup in which conmons start
	Boot        string // ID of the machine's boot
	Images      Images
	Host        oci.Host
	Ulimits     *confine.Ulimits
	Seccomp     *confine.Seccomp
	CDISpecDirs []string
}

// Record is what a container was made from: containers/<id>/container.json.
// It never changes.
type Record struct {
	ID         string                                                                `json:"id"`
	Boot       string                                                                `json:"boot"` // ID of the machine's boot in which it was made
	SandboxID  string                                                                `json:"sandboxID"`
	Config     disk.Message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig] `json:"config"`
	ImageID    string                                                                `json:"imageID"`
	Image      ocispec.ImageConfig                                                   `json:"image"`
	CreatedAt  int64                                                                 `json:"createdAt"` // ns
	Log        string                                                                `json:"log,omitempty"`
	Cgroup     string                                                                `json:"cgroup"`
	StopSignal string                                                                `json:"stopSignal"`
	Hooked     bool                                                                  `json:"hooked,omitempty"`  // its spec may have hooks
	Volumes    []string                                                              `json:"volumes,omitempty"` // image IDs, by index of the mount
}

// State is the current status of a container. It is written after the container has been
// created, before it is started, after it has been started, and when its resources change: to
// status.json in the state folder, because none of that outlives the machine's boot. How the
// container ended is written to status.json in the durable folder. A container with neither file
// was half made, or lost its state in a reboot.
type State struct {
	PID       int                                                                                   `json:"pid"`
	PIDStart  uint64                                                                                `json:"pidStart"`          // in clock ticks since boot; detects a reused PID
	Refused   string                                                                                `json:"refused,omitempty"` // why the OCI runtime refused to create it
	Starting  bool                                                                                  `json:"starting,omitempty"`
	StartedAt int64                                                                                 `json:"startedAt,omitempty"`  // ns
	EndedAt   int64                                                                                 `json:"finishedAt,omitempty"` // ns
	ExitCode  int32                                                                                 `json:"exitCode,omitempty"`
	Reason    string                                                                                `json:"reason,omitempty"`
	Message   string                                                                                `json:"message,omitempty"`
	User      specs.User                                                                            `json:"user"`
	Resources disk.Message[runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources] `json:"resources"`
}

// state derives CRI's state from the facts.
//
//	CREATED ── StartContainer ──▶ RUNNING ──▶ EXITED
//	   └───────── its process dies ─────────────▲
//
// A container that the OCI runtime refused to create is CREATED, without a process, until
// somebody starts or stops it: then the start fails with the runtime's message and it becomes
// EXITED.
func (st State) state() runtimeapi.ContainerState {
	switch {
	case st.EndedAt != 0:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case st.StartedAt != 0:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	default:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	}
}

// Container is one container of a sandbox.
type Container struct {
	env     *Env
	ID      string
	rec     Record
	root    string // durable folder
	bundle  oci.Bundle
	runtime *oci.Runtime

	op      sync.Mutex    // serialises start, update and remove
	given   sync.Once     // closes gaveUp
	gaveUp  chan struct{} // closed when a refused container is to become EXITED
	exited  chan struct{} // closed once it has exited and its status says so
	cleaned chan struct{} // closed once nothing of it is mounted or running

	mu      sync.Mutex // guards status, removed and killAt
	status  State
	removed bool
	killAt  time.Time // deadline of the grace period of a stop

	control monitor.Control

	target string // path of the PID namespace that it joins, if it is a debug container

	uses sync.WaitGroup // its start and the commands running in it

	cpu   stats.CPURate
	layer disk.Measured // of the writable layer

	encoded atomic.Pointer[wireItem]
}

// New returns the container of a record. Nothing is read or made.
func (e *Env) New(rec Record, r *oci.Runtime) *Container {
	cfg := rec.Config.M
	c := &Container{
		env: e, ID: rec.ID, rec: rec, runtime: r,
		root: filepath.Join(e.Layout.Containers(), rec.ID),
		bundle: oci.Bundle{
			ID: rec.ID, Dir: filepath.Join(e.Layout.ContainerState(), rec.ID), Log: rec.Log, ExitDir: e.Layout.Exits(),
			Cgroup: rec.Cgroup, Hooked: rec.Hooked, Terminal: cfg.GetTty(), Stdin: cfg.GetStdin(), StdinOnce: cfg.GetStdinOnce(),
		},
		gaveUp: make(chan struct{}), exited: make(chan struct{}), cleaned: make(chan struct{}),
	}
	c.control.Bundle, c.control.Exited = c.bundle, c.exited
	return c
}

func (c *Container) recordPath() string { return filepath.Join(c.root, "container.json") }

func (c *Container) finalPath() string { return filepath.Join(c.root, "status.json") }

func (c *Container) statusPath() string { return filepath.Join(c.bundle.Dir, "status.json") }

func (c *Container) upper() string { return filepath.Join(c.root, "upper") }

func (c *Container) workdir() string { return filepath.Join(c.root, "work") }

func (c *Container) rootfs() string { return filepath.Join(c.bundle.Dir, "rootfs") }

// Config returns what it was made from.
func (c *Container) Config() *runtimeapi.ContainerConfig { return c.rec.Config.M }

// SandboxID returns the ID of its sandbox.
func (c *Container) SandboxID() string { return c.rec.SandboxID }

// CreatedAt returns when it was created, in nanoseconds.
func (c *Container) CreatedAt() int64 { return c.rec.CreatedAt }

// LogPath returns where its log is, or "" if it has none.
func (c *Container) LogPath() string { return c.rec.Log }

// ReopenLog has conmon write to a new file at the log's path.
func (c *Container) ReopenLog(ctx context.Context) error { return c.control.ReopenLog(ctx) }

// Exited returns a channel that is closed once it has exited and its status says so.
func (c *Container) Exited() <-chan struct{} { return c.exited }

// Cleaned returns a channel that is closed once nothing of it is mounted or running.
func (c *Container) Cleaned() <-chan struct{} { return c.cleaned }

// State returns CRI's state.
func (c *Container) State() runtimeapi.ContainerState { return c.current().state() }

// current returns a copy of the status.
func (c *Container) current() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// update changes the status, on disk first.
func (c *Container) update(change func(*State)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.status
	change(&next)
	if err := c.saveLocked(next); err != nil {
		return err
	}
	c.status = next
	return nil
}

// save writes the current status to disk.
func (c *Container) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saveLocked(c.status)
}

func (c *Container) saveLocked(st State) error {
	path := c.statusPath()
	if st.EndedAt != 0 {
		path = c.finalPath()
	}
	if err := disk.Save(path, st); err != nil {
		return fmt.Errorf("record container %s: %w", c.ID, err)
	}
	return nil
}

// Running reports whether it runs.
func (c *Container) Running() bool {
	return c.current().state() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Key returns what identifies a container to the kubelet, which raises the attempt whenever it
// wants a new one.
func Key(sandboxID string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("container %s attempt %d of sandbox %s", m.GetName(), m.GetAttempt(), sandboxID)
}
