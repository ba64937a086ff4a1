package hollow

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
)

// madeUp is the container runtime of one node. Its sandboxes and containers are entries in memory;
// it outlives the node's kubelet, and every method is safe for concurrent use.
type madeUp struct {
	// ended is told of the pod of a container that ended by itself. It is called without the lock.
	ended func(types.UID)

	mu   sync.Mutex
	ips  *addresses
	pods map[types.UID][]*sandbox // oldest first
}

// sandbox of a pod. It has an address as long as it is ready, unless it uses the node's.
type sandbox struct {
	id         string // see sandboxID
	attempt    uint32
	created    time.Time
	ready      bool
	ip         netip.Addr
	containers []*instance
}

// instance of a container. Its state follows from its times:
//
//	created ──start──> started ──stop, or its own end──> finished
type instance struct {
	id, name, image, hash      string
	attempt                    uint32
	created, started, finished time.Time
	exitCode                   int32
	reason                     string // Kubernetes' word for the end, if the exit code does not say it
	timer                      *time.Timer
}

func newRuntime(network netip.Prefix, ended func(types.UID)) *madeUp {
	return &madeUp{ended: ended, ips: newAddresses(network), pods: map[types.UID][]*sandbox{}}
}

// sandboxID returns an ID from which the pod can be told. Nobody outside sees the IDs of sandboxes.
func sandboxID(uid types.UID, attempt uint32) string { return fmt.Sprintf("%s/%d", uid, attempt) }

// podOf returns the UID in the ID of a sandbox.
func podOf(sandboxID string) types.UID {
	uid, _, _ := strings.Cut(sandboxID, "/")
	return types.UID(uid)
}

// newID returns an ID as runtimes make them.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

func errUnknown(what, id string) error {
	return status.Errorf(codes.NotFound, "%s %s does not exist", what, id)
}

// runSandbox makes a sandbox that is ready, or returns the one that an earlier call made.
func (r *madeUp) runSandbox(pod *v1.Pod, attempt uint32) (id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.pods[pod.UID] {
		if s.attempt == attempt {
			return s.id, nil
		}
	}
	s := &sandbox{id: sandboxID(pod.UID, attempt), attempt: attempt, created: time.Now(), ready: true}
	if !pod.Spec.HostNetwork {
		if s.ip, err = r.ips.take(); err != nil {
			return "", err
		}
	}
	r.pods[pod.UID] = append(r.pods[pod.UID], s)
	return s.id, nil
}

// stopSandbox ends what runs in a sandbox, and gives its address back.
func (r *madeUp) stopSandbox(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxLocked(id); s != nil {
		r.closeLocked(s)
	}
}

func (r *madeUp) closeLocked(s *sandbox) {
	for _, c := range s.containers {
		c.end(0)
	}
	if s.ready && s.ip.IsValid() {
		r.ips.free(s.ip)
	}
	s.ready = false
}

func (r *madeUp) removeSandbox(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxLocked(id)
	if s == nil {
		return
	}
	r.closeLocked(s)
	uid := podOf(id)
	r.pods[uid] = slices.DeleteFunc(r.pods[uid], func(o *sandbox) bool { return o == s })
	if len(r.pods[uid]) == 0 {
		delete(r.pods, uid)
	}
}

// create makes an instance of a container, or keeps the one that an earlier call made.
func (r *madeUp) create(sandboxID string, spec *v1.Container, attempt uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxLocked(sandboxID)
	if s == nil || !s.ready {
		return errUnknown("sandbox", sandboxID)
	}
	if slices.ContainsFunc(s.containers, func(c *instance) bool { return c.name == spec.Name && c.attempt == attempt }) {
		return nil
	}
	s.containers = append(s.containers, &instance{
		id: newID(), name: spec.Name, image: spec.Image, hash: pods.Hash(spec), attempt: attempt, created: time.Now(),
	})
	return nil
}

// start runs an instance until it is stopped or, if by is not nil, ends by itself.
func (r *madeUp) start(uid types.UID, id string, by *ending) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.instanceLocked(uid, id)
	if c == nil {
		return errUnknown("container", id)
	}
	if c.started.IsZero() {
		c.started = time.Now()
		r.scheduleLocked(uid, c, by)
	}
	return nil
}

// scheduleLocked plans the end of an instance that runs.
func (r *madeUp) scheduleLocked(uid types.UID, c *instance, by *ending) {
	if by == nil {
		return
	}
	c.timer = time.AfterFunc(max(time.Until(c.started.Add(by.after)), 0), func() {
		r.stop(uid, c.id, by.code)
		r.ended(uid)
	})
}

// stop ends an instance. One that is gone has ended.
func (r *madeUp) stop(uid types.UID, id string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.instanceLocked(uid, id); c != nil {
		c.end(code)
	}
}

// end notes the end of an instance, unless it has ended already.
func (c *instance) end(code int32) {
	if !c.finished.IsZero() {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.finished, c.exitCode = time.Now(), code
}

func (r *madeUp) remove(uid types.UID, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.pods[uid] {
		s.containers = slices.DeleteFunc(s.containers, func(c *instance) bool {
			if c.id == id {
				c.end(137)
			}
			return c.id == id
		})
	}
}

// keepOnly removes the sandboxes of all pods that are not among these: nobody wants them any more.
func (r *madeUp) keepOnly(wanted func(types.UID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, list := range r.pods {
		if wanted(uid) {
			continue
		}
		for _, s := range list {
			r.closeLocked(s)
		}
		delete(r.pods, uid)
	}
}

// has reports whether a pod has a sandbox.
func (r *madeUp) has(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pods[uid]) > 0
}

// close ends what waits for its end.
func (r *madeUp) close() { r.keepOnly(func(types.UID) bool { return false }) }

func (r *madeUp) sandboxLocked(id string) *sandbox {
	for _, s := range r.pods[podOf(id)] {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (r *madeUp) instanceLocked(uid types.UID, id string) *instance {
	for _, s := range r.pods[uid] {
		for _, c := range s.containers {
			if c.id == id {
				return c
			}
		}
	}
	return nil
}

// imageID returns the ID that an image has on all nodes: it is never pulled.
func imageID(image string) string { return fmt.Sprintf("%s@sha256:%x", image, digest(image)) }
