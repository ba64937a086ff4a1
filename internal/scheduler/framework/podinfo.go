package framework

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

func newMilli(v int64) *resource.Quantity { return resource.NewMilliQuantity(v, resource.DecimalSI) }
func newBytes(v int64) *resource.Quantity { return resource.NewQuantity(v, resource.BinarySI) }

// PodInfo is a pod with precomputed values that plugins often need. It does not change.
type PodInfo struct {
	pod                   *v1.Pod
	resource              fwk.PodResource
	requiredAffinity      []fwk.AffinityTerm
	requiredAntiAffinity  []fwk.AffinityTerm
	preferredAffinity     []fwk.WeightedAffinityTerm
	preferredAntiAffinity []fwk.WeightedAffinityTerm
}

var _ fwk.PodInfo = (*PodInfo)(nil)

// NewPodInfo computes a pod's requests and affinity terms. If a term does not parse, it returns an
// error that names the pod.
func NewPodInfo(pod *v1.Pod) (*PodInfo, error) {
	pi := &PodInfo{pod: pod, resource: podResource(pod)}
	a := pod.Spec.Affinity
	if a == nil {
		return pi, nil
	}
	var err error
	if pa := a.PodAffinity; pa != nil {
		if pi.requiredAffinity, err = fwk.GetAffinityTerms(pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, fmt.Errorf("pod %s/%s: podAffinity: %w", pod.Namespace, pod.Name, err)
		}
		if pi.preferredAffinity, err = fwk.GetWeightedAffinityTerms(pod, pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, fmt.Errorf("pod %s/%s: podAffinity: %w", pod.Namespace, pod.Name, err)
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		if pi.requiredAntiAffinity, err = fwk.GetAffinityTerms(pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, fmt.Errorf("pod %s/%s: podAntiAffinity: %w", pod.Namespace, pod.Name, err)
		}
		if pi.preferredAntiAffinity, err = fwk.GetWeightedAffinityTerms(pod, pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, fmt.Errorf("pod %s/%s: podAntiAffinity: %w", pod.Namespace, pod.Name, err)
		}
	}
	return pi, nil
}

// On returns the pod as it is when it is bound to the node.
func (pi *PodInfo) On(node string) *PodInfo {
	there, pod := *pi, *pi.pod
	pod.Spec.NodeName = node
	there.pod = &pod
	return &there
}

// Nominated returns the pod with the nomination for a node.
func (pi *PodInfo) Nominated(node string) *PodInfo {
	nominated, pod := *pi, *pi.pod
	pod.Status.NominatedNodeName = node
	nominated.pod = &pod
	return &nominated
}

// GetPod returns the pod, which nobody may change.
func (pi *PodInfo) GetPod() *v1.Pod { return pi.pod }

// GetRequiredAffinityTerms returns the terms that must match.
func (pi *PodInfo) GetRequiredAffinityTerms() []fwk.AffinityTerm { return pi.requiredAffinity }

// GetRequiredAntiAffinityTerms returns the terms that must not match.
func (pi *PodInfo) GetRequiredAntiAffinityTerms() []fwk.AffinityTerm { return pi.requiredAntiAffinity }

// GetPreferredAffinityTerms returns the terms that should match if possible.
func (pi *PodInfo) GetPreferredAffinityTerms() []fwk.WeightedAffinityTerm {
	return pi.preferredAffinity
}

// GetPreferredAntiAffinityTerms returns the terms that should not match if possible.
func (pi *PodInfo) GetPreferredAntiAffinityTerms() []fwk.WeightedAffinityTerm {
	return pi.preferredAntiAffinity
}

// CalculateResource returns what the pod requests.
func (pi *PodInfo) CalculateResource() fwk.PodResource { return pi.resource }

// QueuedPodInfo is a pod in the scheduling queue, with its history there. The queue writes it; the
// scheduling cycle gets a copy when the pod is popped.
type QueuedPodInfo struct {
	*PodInfo
	Timestamp               time.Time // when it was added to the queue this time
	Attempts                int
	BackoffExpiration       time.Time
	UnschedulableCount      int
	ConsecutiveErrors       int
	InitialAttemptTimestamp *time.Time
	UnschedulablePlugins    sets.Set[string] // the plugins that rejected it last
	PendingPlugins          sets.Set[string]
	GatingPlugin            string
	GatingPluginEvents      []fwk.ClusterEvent
	// Flushed means that only time brought it back to the queue, and no event: a hint was wrong, perhaps.
	Flushed bool
}

var _ fwk.QueuedEntityInfo = (*QueuedPodInfo)(nil)

// Type returns that this is a single pod.
func (q *QueuedPodInfo) Type() fwk.EntityKeyType { return fwk.PodKeyType }

// GetPriority returns spec.priority, or 0 if there is none.
func (q *QueuedPodInfo) GetPriority() int32 { return Priority(q.pod) }

// GetTimestamp returns when the pod was added to the queue.
func (q *QueuedPodInfo) GetTimestamp() time.Time { return q.Timestamp }

// GetAttempts returns how often the scheduler has tried the pod.
func (q *QueuedPodInfo) GetAttempts() int { return q.Attempts }

// GetBackoffExpiration returns the time before which the pod is not retried.
func (q *QueuedPodInfo) GetBackoffExpiration() time.Time { return q.BackoffExpiration }

// GetUnschedulableCount returns how often no node fitted.
func (q *QueuedPodInfo) GetUnschedulableCount() int { return q.UnschedulableCount }

// GetConsecutiveErrorsCount returns how many attempts in a row have ended in an error.
func (q *QueuedPodInfo) GetConsecutiveErrorsCount() int { return q.ConsecutiveErrors }

// GetInitialAttemptTimestamp returns when the pod was first tried.
func (q *QueuedPodInfo) GetInitialAttemptTimestamp() *time.Time { return q.InitialAttemptTimestamp }

// GetUnschedulablePlugins returns the plugins that rejected the pod last.
func (q *QueuedPodInfo) GetUnschedulablePlugins() sets.Set[string] { return q.UnschedulablePlugins }

// GetPendingPlugins returns the plugins that the pod waits for.
func (q *QueuedPodInfo) GetPendingPlugins() sets.Set[string] { return q.PendingPlugins }

// GetGatingPlugin returns the PreEnqueue plugin that keeps the pod out of the queue.
func (q *QueuedPodInfo) GetGatingPlugin() string { return q.GatingPlugin }

// GetGatingPluginEvents returns the events that may open the gate.
func (q *QueuedPodInfo) GetGatingPluginEvents() []fwk.ClusterEvent { return q.GatingPluginEvents }
