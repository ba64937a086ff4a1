package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// fitError holds, for every node, why a pod cannot run there. Its text is the one that users know
// from upstream: reasons with the number of nodes that gave them.
type fitError struct {
	nodes    int
	statuses map[string]*fwk.Status // by node
	// looked are nodes that were looked at, side by side with their statuses, nil for none: there may be very many.
	looked []fwk.NodeInfo
	found  []*fwk.Status
	// byName has found by node, once somebody asks.
	byName func() map[string]*fwk.Status
	// absent is the status of all nodes that are in neither.
	absent *fwk.Status
	// among are the nodes to which the pod may go, if others are of no use to its group.
	among []fwk.NodeInfo
	// plugins have rejected the pod; for pending ones it must wait.
	plugins, pending sets.Set[string]
	preFilter        string // why it can run on no node at all
	postFilter       string
	// roomUnknown says that PostFilter failed. No event tells when it would succeed, so that the pod is tried again
	// after a while, as after any error. For its user, and for what adds nodes, it is one that fits nowhere.
	roomUnknown bool
}

func newFitError(nodes int) *fitError {
	return &fitError{
		nodes: nodes, statuses: map[string]*fwk.Status{}, absent: fwk.NewStatus(fwk.UnschedulableAndUnresolvable),
		plugins: sets.New[string](), pending: sets.New[string](),
	}
}

// rejectLooked notes the statuses of nodes, side by side with them, nil for none.
func (f *fitError) rejectLooked(nodes []fwk.NodeInfo, statuses []*fwk.Status) {
	f.looked, f.found = nodes, slices.Clone(statuses)
	f.byName = sync.OnceValue(func() map[string]*fwk.Status {
		out := make(map[string]*fwk.Status, len(f.found))
		for i, st := range f.found {
			if st != nil {
				out[f.looked[i].Node().Name] = st
			}
		}
		return out
	})
	var last string // most are rejected by few plugins
	for _, st := range statuses {
		if st != nil && (st.Plugin() != last || st.Code() == fwk.Pending) {
			f.blame(st)
			last = st.Plugin()
		}
	}
}

// all yields the status of every node that has one of its own.
func (f *fitError) all(yield func(*fwk.Status) bool) {
	for _, st := range f.statuses {
		if !yield(st) {
			return
		}
	}
	for i, st := range f.found {
		if st != nil && (len(f.statuses) == 0 || f.statuses[f.looked[i].Node().Name] == nil) && !yield(st) {
			return
		}
	}
}

func (f *fitError) blame(st *fwk.Status) {
	if st.Code() == fwk.Pending {
		f.pending.Insert(st.Plugin())
	} else {
		f.plugins.Insert(st.Plugin())
	}
}

// reject notes why the pod cannot run on one node.
func (f *fitError) reject(node string, st *fwk.Status) {
	f.statuses[node] = st
	f.blame(st)
}

// rejectAll notes why the pod can run on no node.
func (f *fitError) rejectAll(st *fwk.Status) {
	f.preFilter, f.absent = st.Message(), st
	f.blame(st)
}

// exclude notes that plugins have excluded all nodes that are not looked at.
func (f *fitError) exclude(by sets.Set[string]) {
	f.absent = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(by)))
	f.plugins = f.plugins.Union(by)
}

func (f *fitError) Error() string {
	msg := fmt.Sprintf("0/%d nodes are available: %s.", f.nodes, f.preFilter)
	if f.preFilter == "" {
		msg = framework.NotAvailable(f.nodes, f.all, f.absent)
	}
	if f.postFilter != "" {
		msg += " " + f.postFilter
	}
	return msg
}

// fail re-queues the pod and reports the reason to its user, while the next pod is scheduled: first the
// condition, with the node on which room is being made for it, then the event.
func (s *Scheduler) fail(ctx context.Context, a *attempt, err error) {
	pod := a.pod()
	a.info.UnschedulablePlugins, a.info.PendingPlugins = rejectedBy(err)
	reason, result := v1.PodReasonUnschedulable, resultUnschedulable
	if a.info.UnschedulablePlugins.Len()+a.info.PendingPlugins.Len() == 0 {
		reason, result = v1.PodReasonSchedulerError, resultError
	}
	observe(result, a.profile.Name, time.Since(a.start))
	if gone(err) {
		s.queue.Remove(pod.UID)
		return
	}
	if fit, ok := errors.AsType[*fitError](err); ok && fit.roomUnknown {
		a.info.UnschedulablePlugins, a.info.PendingPlugins = nil, nil
	}
	// Before the pod can be tried again, so that nobody takes the room in between.
	s.queue.Nominator().AddNominatedPod(klog.FromContext(ctx), a.info.PodInfo, a.nominated)
	s.leaves(ctx, a, s.queue.Nominator().NodeOf(pod.UID))
	if !s.queue.Requeue(ctx, a.info) || ctx.Err() != nil {
		return
	}
	s.statuses.put(ctx, pod.UID, &statusUpdate{profile: a.profile, pod: pod, reason: reason, message: err.Error(), nominated: a.nominated})
}

// leaves wakes those who kept off the node for which the pod was nominated, if it has another one now, or none. What the
// API says of that need not change: the nomination may not be written yet.
func (s *Scheduler) leaves(ctx context.Context, a *attempt, now string) {
	if a.held != "" && a.held != now {
		s.freed(ctx, a.info.GetPod(), a.held)
	}
}

// freed wakes those who kept off the room of a pod that was nominated for the node: to them, it is as if it had gone.
func (s *Scheduler) freed(ctx context.Context, pod *v1.Pod, node string) {
	held := pod.DeepCopy()
	held.Status.NominatedNodeName = node
	s.move(ctx, time.Now(), fwk.UnscheduledPod, fwk.Delete, held, nil)
}

// report tells a pod's user why it has no node. One that has got a node before it is its turn has that in its events only.
func (s *Scheduler) report(ctx context.Context, u *statusUpdate) {
	if !s.cache.Has(u.pod.UID) {
		if err := s.setCondition(ctx, u.pod, u.reason, u.message, u.nominated); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot write the pod's PodScheduled condition; the next attempt writes it again")
		}
	}
	s.recorder(ctx, u.profile).Eventf(u.pod, nil, v1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", u.message)
}

// gone reports whether err means that the pod was deleted, so that there is nothing left to do for
// it.
func gone(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Kind == "pods")
}

// setCondition writes PodScheduled, unless the pod turns out to have a node: its binding may have
// taken effect although the answer was lost.
func (s *Scheduler) setCondition(ctx context.Context, pod *v1.Pod, reason, message string, nominated *fwk.NominatingInfo) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		err := s.patchCondition(ctx, pod, reason, message, nominated)
		if !apierrors.IsConflict(err) {
			return err
		}
		now, gerr := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if gerr != nil || now.Spec.NodeName != "" || now.UID != pod.UID {
			return gerr
		}
		pod = now
		return err
	})
}

// patchCondition patches PodScheduled of this version of the pod and its nominated node, unless it has
// these values already.
func (s *Scheduler) patchCondition(ctx context.Context, pod *v1.Pod, reason, message string, nominated *fwk.NominatingInfo) error {
	status := map[string]any{}
	same := func(c v1.PodCondition) bool {
		return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && c.Reason == reason && c.Message == message
	}
	if !slices.ContainsFunc(pod.Status.Conditions, same) {
		status["conditions"] = []v1.PodCondition{{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
		}}
	}
	if nominated.Mode() == fwk.ModeOverride && nominated.NominatedNodeName != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = nominated.NominatedNodeName
	}
	if len(status) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
