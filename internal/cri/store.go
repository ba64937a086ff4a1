package cri

import (
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/sandbox"
)

// labelPodUID is the label by which a kubelet finds the sandboxes of a pod, at every look at it.
const labelPodUID = "io.kubernetes.pod.uid"

// store has the sandboxes and containers of an instance. Those that are half made are not in it. A
// node keeps a thousand ended pods and more: what is asked for each look at a pod has an index.
type store struct {
	mu         sync.RWMutex // guards the maps below
	sandboxes  map[string]*sandbox.Sandbox
	containers map[string]*container.Container

	byKey     map[string]*sandbox.Sandbox
	byUID     map[string][]*sandbox.Sandbox     // by the label that the kubelet gives them
	bySandbox map[string][]*container.Container // by the sandbox's ID
}

func newStore() *store {
	return &store{
		sandboxes: map[string]*sandbox.Sandbox{}, containers: map[string]*container.Container{},
		byKey: map[string]*sandbox.Sandbox{}, byUID: map[string][]*sandbox.Sandbox{}, bySandbox: map[string][]*container.Container{},
	}
}

func (s *store) addSandbox(b *sandbox.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[b.ID] = b
	s.byKey[b.Key] = b
	join(s.byUID, b.Config.GetLabels()[labelPodUID], b)
}

func (s *store) dropSandbox(b *sandbox.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, b.ID)
	if s.byKey[b.Key] == b {
		delete(s.byKey, b.Key)
	}
	leave(s.byUID, b.Config.GetLabels()[labelPodUID], b)
}

func (s *store) addContainer(c *container.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containers[c.ID] = c
	join(s.bySandbox, c.SandboxID(), c)
}

func (s *store) dropContainer(c *container.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, c.ID)
	leave(s.bySandbox, c.SandboxID(), c)
}

// join and leave replace a group rather than change it: readers have it without the lock.
func join[T comparable](groups map[string][]T, of string, x T) {
	leave(groups, of, x)
	groups[of] = append(slices.Clone(groups[of]), x)
}

func leave[T comparable](groups map[string][]T, of string, x T) {
	rest := slices.DeleteFunc(slices.Clone(groups[of]), func(y T) bool { return y == x })
	if len(rest) == 0 {
		delete(groups, of)
		return
	}
	groups[of] = rest
}

// sandbox finds a sandbox by its ID or an unambiguous prefix of it.
func (s *store) sandbox(id string) (*sandbox.Sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return lookup(s.sandboxes, "sandbox", id)
}

// container finds a container by its ID or an unambiguous prefix of it.
func (s *store) container(id string) (*container.Container, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return lookup(s.containers, "container", id)
}

// running finds a container that runs.
func (s *store) running(id string) (*container.Container, error) {
	c, err := s.container(id)
	if err == nil && !c.Running() {
		err = crierror.Precondition("container %s is not running", c.ID)
	}
	return c, err
}

func lookup[T any](m map[string]T, kind, id string) (T, error) {
	if x, ok := m[id]; ok {
		return x, nil
	}
	var found T
	n := 0
	if id != "" {
		for full, x := range m {
			if strings.HasPrefix(full, id) {
				found = x
				n++
			}
		}
	}
	var none T
	switch n {
	case 0:
		return none, crierror.NotFound("%s %q not found", kind, id)
	case 1:
		return found, nil
	}
	return none, crierror.Invalid("%s ID %q is ambiguous", kind, id)
}

// hasSandbox reports whether a sandbox has not been removed.
func (s *store) hasSandbox(id string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sandboxes[id] != nil
}

// sandboxOf returns the sandbox of a container, or nil if it is gone.
func (s *store) sandboxOf(c *container.Container) *sandbox.Sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sandboxes[c.SandboxID()]
}

// uidOf returns the pod's UID, for spans.
func (s *store) uidOf(c *container.Container) string {
	if b := s.sandboxOf(c); b != nil {
		return b.UID()
	}
	return ""
}

func (s *store) sandboxByKey(key string) *sandbox.Sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKey[key]
}

// sandboxesOf returns the sandboxes that have the labels, and perhaps others.
func (s *store) sandboxesOf(labels map[string]string) []*sandbox.Sandbox {
	uid, ok := labels[labelPodUID]
	if !ok {
		return s.allSandboxes()
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byUID[uid]
}

func (s *store) containerByKey(sandboxID string, m *runtimeapi.ContainerMetadata) *container.Container {
	for _, c := range s.containersOf(sandboxID) {
		if proto.Equal(c.Config().GetMetadata(), m) {
			return c
		}
	}
	return nil
}

func (s *store) allSandboxes() []*sandbox.Sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*sandbox.Sandbox, 0, len(s.sandboxes))
	for _, b := range s.sandboxes {
		all = append(all, b)
	}
	return all
}

func (s *store) allContainers() []*container.Container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*container.Container, 0, len(s.containers))
	for _, c := range s.containers {
		all = append(all, c)
	}
	return all
}

// containersOf returns the containers of a sandbox, which the caller must not change.
func (s *store) containersOf(sandboxID string) []*container.Container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bySandbox[sandboxID]
}
