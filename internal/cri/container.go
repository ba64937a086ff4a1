package cri

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/oci"
)

// containerRecord is what a container was made from: containers/<id>/container.json.
// It never changes.
type containerRecord struct {
	ID         string                                                           `json:"id"`
	Boot       string                                                           `json:"boot"` // ID of the machine's boot in which it was made
	SandboxID  string                                                           `json:"sandboxID"`
	Config     message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig] `json:"config"`
	ImageID    string                                                           `json:"imageID"`
	Image      ocispec.ImageConfig                                              `json:"image"`
	CreatedAt  int64                                                            `json:"createdAt"` // ns
	Log        string                                                           `json:"log,omitempty"`
	Cgroup     string                                                           `json:"cgroup"`
	StopSignal string                                                           `json:"stopSignal"`
	Hooked     bool                                                             `json:"hooked,omitempty"`  // its spec may have hooks
	Volumes    []string                                                         `json:"volumes,omitempty"` // image IDs, by index of the mount
}

// containerStatus is the current status of a container. It is written after the container has been
// created, before it is started, after it has been started, and when its resources change: to
// status.json in the state folder, because none of that outlives the machine's boot. How the
// container ended is written to status.json in the durable folder. A container with neither file
// was half made, or lost its state in a reboot.
type containerStatus struct {
	PID       int                                                                              `json:"pid"`
	PIDStart  uint64                                                                           `json:"pidStart"`          // in clock ticks since boot; detects a reused PID
	Refused   string                                                                           `json:"refused,omitempty"` // why the OCI runtime refused to create it
	Starting  bool                                                                             `json:"starting,omitempty"`
	StartedAt int64                                                                            `json:"startedAt,omitempty"`  // ns
	EndedAt   int64                                                                            `json:"finishedAt,omitempty"` // ns
	ExitCode  int32                                                                            `json:"exitCode,omitempty"`
	Reason    string                                                                           `json:"reason,omitempty"`
	Message   string                                                                           `json:"message,omitempty"`
	User      specs.User                                                                       `json:"user"`
	Resources message[runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources] `json:"resources"`
}

// state derives CRI's state from the facts.
//
//	CREATED ── StartContainer ──▶ RUNNING ──▶ EXITED
//	   └───────── its process dies ─────────────▲
//
// A container that the OCI runtime refused to create is CREATED, without a process, until
// somebody starts or stops it: then the start fails with the runtime's message and it becomes
// EXITED.
func (st containerStatus) state() runtimeapi.ContainerState {
	switch {
	case st.EndedAt != 0:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case st.StartedAt != 0:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	default:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	}
}

// container is one container of a sandbox.
type container struct {
	id      string
	rec     containerRecord
	root    string // durable folder
	bundle  oci.Bundle
	runtime *oci.Runtime

	op      sync.Mutex    // serialises start, update and remove
	ctl     sync.Mutex    // serialises commands to conmon
	given   sync.Once     // closes gaveUp
	gaveUp  chan struct{} // closed when a refused container is to become EXITED
	exited  chan struct{} // closed once it has exited and its status says so
	cleaned chan struct{} // closed once nothing of it is mounted or running

	mu      sync.Mutex // guards status, removed and killAt
	status  containerStatus
	removed bool
	killAt  time.Time // deadline of the grace period of a stop

	uses sync.WaitGroup // its start and the commands running in it

	cpu   cpuRate
	layer measuredUsage // of the writable layer

	encoded atomic.Pointer[wireItem]
}

func (s *Server) newContainer(rec containerRecord, r *oci.Runtime) *container {
	cfg := rec.Config.m
	return &container{
		id: rec.ID, rec: rec, runtime: r,
		root: filepath.Join(s.cfg.containerRoot(), rec.ID),
		bundle: oci.Bundle{
			ID: rec.ID, Dir: filepath.Join(s.cfg.containerState(), rec.ID), Log: rec.Log, ExitDir: s.cfg.exitDir(),
			Cgroup: rec.Cgroup, Hooked: rec.Hooked, Terminal: cfg.GetTty(), Stdin: cfg.GetStdin(), StdinOnce: cfg.GetStdinOnce(),
		},
		gaveUp: make(chan struct{}), exited: make(chan struct{}), cleaned: make(chan struct{}),
	}
}

func (c *container) recordPath() string { return filepath.Join(c.root, "container.json") }
func (c *container) finalPath() string  { return filepath.Join(c.root, "status.json") }
func (c *container) statusPath() string { return filepath.Join(c.bundle.Dir, "status.json") }
func (c *container) upper() string      { return filepath.Join(c.root, "upper") }
func (c *container) workdir() string    { return filepath.Join(c.root, "work") }
func (c *container) rootfs() string     { return filepath.Join(c.bundle.Dir, "rootfs") }

func (c *container) config() *runtimeapi.ContainerConfig { return c.rec.Config.m }

// current returns a copy of the status.
func (c *container) current() containerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// update changes the status, on disk first.
func (c *container) update(change func(*containerStatus)) error {
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
func (c *container) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saveLocked(c.status)
}

func (c *container) saveLocked(st containerStatus) error {
	path := c.statusPath()
	if st.EndedAt != 0 {
		path = c.finalPath()
	}
	if err := saveRecord(path, st); err != nil {
		return fmt.Errorf("record container %s: %w", c.id, err)
	}
	return nil
}

// loadStatus reads the status. whole is false if the container was half made.
func (c *container) loadStatus(log klog.Logger, boot string) (whole bool, err error) {
	for _, path := range []string{c.finalPath(), c.statusPath()} {
		if ok, err := loadRecord(log, path, &c.status); err != nil || ok {
			return ok, err
		}
	}
	return c.rec.Boot != boot, nil
}

func (c *container) running() bool {
	return c.current().state() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// findContainer finds a container by its ID or an unambiguous prefix of it.
func (s *Server) findContainer(id string) (*container, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return lookup(s.containers, "container", id)
}

// sandboxOf returns the sandbox of a container, or nil if it is gone.
func (s *Server) sandboxOf(c *container) *sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sandboxes[c.rec.SandboxID]
}

// uidOf returns the pod's UID, for spans.
func (s *Server) uidOf(c *container) string {
	if b := s.sandboxOf(c); b != nil {
		return b.uid()
	}
	return ""
}

func containerKey(sandboxID string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("container %s attempt %d of sandbox %s", m.GetName(), m.GetAttempt(), sandboxID)
}

func nanos(t time.Time) int64 { return t.UnixNano() }
