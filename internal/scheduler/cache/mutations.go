package cache

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

var _ fwk.MutableSnapshotSharedLister = (*Snapshot)(nil)

var (
	errMutating    = errors.New("the scheduler's snapshot is being changed already: call EndMutations first")
	errNotMutating = errors.New("the scheduler's snapshot must not be changed: call StartMutations first")
)

// StartMutations allows AddPod and RemovePod, until EndMutations takes back what they did. In between, all readers of
// the snapshot see the cluster as it would be. Nobody may read while it is changed.
func (s *Snapshot) StartMutations() error {
	if s.originals != nil {
		return errMutating
	}
	s.originals = map[string]*framework.NodeInfo{}
	return nil
}

// EndMutations puts the snapshot back.
func (s *Snapshot) EndMutations() error {
	if s.originals == nil {
		return errNotMutating
	}
	for name, n := range s.originals {
		s.set(name, n)
	}
	s.originals = nil
	return nil
}

// AddPod puts a pod on a node.
func (s *Snapshot) AddPod(pod fwk.PodInfo, node string) error {
	return s.mutate(node, func(n *framework.NodeInfo) error {
		n.AddPodInfo(pod)
		return nil
	})
}

// RemovePod takes a pod off the node on which it is.
func (s *Snapshot) RemovePod(log klog.Logger, pod *v1.Pod, node string) error {
	return s.mutate(node, func(n *framework.NodeInfo) error { return n.RemovePod(log, pod) })
}

// mutate changes a node: a copy of it, which it is from the first time on.
func (s *Snapshot) mutate(name string, change func(*framework.NodeInfo) error) error {
	if s.originals == nil {
		return errNotMutating
	}
	n, err := s.node(name)
	if err != nil {
		return err
	}
	if _, ok := s.originals[name]; !ok {
		s.originals[name] = n
		n = n.Clone()
	}
	err = change(n)
	s.set(name, n)
	return err
}
