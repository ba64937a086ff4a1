package hollow

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// adopt makes up what a former process had made up for a pod: what its status says is there. A pod
// that has containers here already, or whose status tells of none of ours, is left alone.
func (r *madeUp) adopt(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &pod.Status
	list := slices.Concat(st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses)
	if len(r.pods[pod.UID]) > 0 || !slices.ContainsFunc(list, func(st v1.ContainerStatus) bool { return ours(&st) }) {
		return
	}
	s := &sandbox{id: sandboxID(pod.UID, 0), created: created(pod), ready: !pods.IsTerminal(st.Phase)}
	if ip, err := netip.ParseAddr(st.PodIP); err == nil && s.ready && !pod.Spec.HostNetwork {
		s.ip = ip
		r.ips.keep(ip)
	}
	r.pods[pod.UID] = []*sandbox{s}
	for i := range list {
		if c := remake(&list[i], pod); c != nil {
			s.containers = append(s.containers, c)
		}
	}
	r.resumeLocked(pod, s)
}

// resumeLocked plans the ends of the containers that run. One whose annotations cannot be read runs on.
func (r *madeUp) resumeLocked(pod *v1.Pod, s *sandbox) {
	for _, c := range s.containers {
		spec := pods.FindContainer(pod, c.name)
		if spec == nil || !c.finished.IsZero() {
			continue
		}
		if by, err := endingOf(pod, spec); err == nil {
			r.scheduleLocked(pod.UID, c, by)
		}
	}
}

// idScheme begins the IDs of our containers in statuses.
const idScheme = runtimeName + "://"

func ours(st *v1.ContainerStatus) bool { return strings.HasPrefix(st.ContainerID, idScheme) }

// created returns when the pod's sandbox may have been made.
func created(pod *v1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// remake returns the instance that a container's status tells of; nil if it was never one of ours. A
// container that waits for its next start has the one before.
func remake(st *v1.ContainerStatus, pod *v1.Pod) *instance {
	if !ours(st) {
		return nil
	}
	c := &instance{
		id: strings.TrimPrefix(st.ContainerID, idScheme), name: st.Name, image: st.Image,
		attempt: uint32(max(st.RestartCount, 0)), created: created(pod),
	}
	if spec := pods.FindContainer(pod, st.Name); spec != nil {
		c.hash = pods.Hash(spec)
	}
	ended := st.State.Terminated
	switch {
	case st.State.Running != nil:
		c.started = st.State.Running.StartedAt.Time
		return c
	case ended == nil:
		ended = st.LastTerminationState.Terminated
	}
	if ended == nil {
		return nil // it was created, and not started yet
	}
	c.started, c.finished = ended.StartedAt.Time, ended.FinishedAt.Time
	if c.finished.IsZero() { // nobody saw the end, but it is one
		c.finished = c.created
	}
	c.exitCode, c.reason = ended.ExitCode, ended.Reason
	return c
}
