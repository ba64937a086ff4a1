package metrics

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/prober"
)

// ProbeMeter writes the series of /metrics/probes; those of a pod are removed with it. It is a
// prober.Meter.
type ProbeMeter struct{}

// Probed implements prober.Meter. The time of a failed probe is not measured.
func (ProbeMeter) Probed(kind, result string, pod *v1.Pod, container string, took time.Duration) {
	Probes.WithLabelValues(kind, result, container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	if result != prober.Failed {
		ProbeDuration.WithLabelValues(kind, container, pod.Name, pod.Namespace).Observe(took.Seconds())
	}
}

// Forget implements prober.Meter.
func (ProbeMeter) Forget(pod *v1.Pod) {
	for c := range pods.Containers(&pod.Spec) {
		for _, kind := range []string{prober.Startup, prober.Liveness, prober.Readiness} {
			labels := map[string]string{"probe_type": kind, "container": c.Name, "pod": pod.Name, "namespace": pod.Namespace}
			ProbeDuration.Delete(labels)
			labels["pod_uid"] = string(pod.UID)
			for _, result := range []string{prober.Successful, prober.Failed, prober.Unknown} {
				labels["result"] = result
				Probes.Delete(labels)
			}
		}
	}
}

// ObservePodStart measures how long a pod took to start, from its creation and from when we first saw
// it.
func ObservePodStart(pod *v1.Pod, seen time.Time, pulling time.Duration) {
	now := time.Now()
	PodStart.Observe(now.Sub(seen).Seconds())
	if created := pod.CreationTimestamp; !created.IsZero() {
		PodStartTotal.Observe(now.Sub(created.Time).Seconds())
		PodStartSLI.Observe((now.Sub(created.Time) - pulling).Seconds())
	}
}
