package kubelet

import (
	"math"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	basemetrics "k8s.io/component-base/metrics"

	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/kubelet/metrics"
)

// refreshMetrics brings gauges up to date, when somebody asks for them.
func (k *Kubelet) refreshMetrics() {
	pods, states := 0, map[string]int{"created": 0, "running": 0, "exited": 0, "unknown": 0}
	for _, p := range k.table.List() {
		for i := range p.Input.Sandboxes {
			if p.Input.Sandboxes[i].Ready {
				pods++
				break
			}
		}
		for i := range p.Input.Containers {
			states[strings.ToLower(string(p.Input.Containers[i].State))]++
		}
	}
	metrics.RunningPods.Set(float64(pods))
	for state, n := range states {
		metrics.RunningContainers.WithLabelValues(state).Set(float64(n))
	}
	metrics.NodeName.WithLabelValues(k.cfg.NodeName).Set(1)
	for gauge, m := range map[*basemetrics.Gauge]*certificates.Manager{metrics.ClientTTL: k.identity, metrics.ServerTTL: k.serving} {
		left := math.Inf(1)
		if m != nil {
			if ttl, ok := m.TTL(time.Now()); ok {
				left = ttl
			}
		}
		gauge.Set(left)
	}
}

func countProbe(kind, result string, pod *v1.Pod, container string) {
	metrics.Probes.WithLabelValues(kind, result, container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
}

// podStarted measures a pod's way up, from its creation and from our first sight.
func podStarted(pod *v1.Pod, seen time.Time, pulling time.Duration) {
	now := time.Now()
	metrics.PodStart.Observe(now.Sub(seen).Seconds())
	if created := pod.CreationTimestamp; !created.IsZero() {
		metrics.PodStartTotal.Observe(now.Sub(created.Time).Seconds())
		metrics.PodStartSLI.Observe((now.Sub(created.Time) - pulling).Seconds())
	}
}
