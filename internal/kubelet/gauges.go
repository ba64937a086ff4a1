package kubelet

import (
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	basemetrics "k8s.io/component-base/metrics"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/prober"
)

// refreshMetrics updates the gauges when somebody reads them.
func (k *Kubelet) refreshMetrics() {
	pods, states := 0, map[string]int{"created": 0, "running": 0, "exited": 0, "unknown": 0}
	desired, active, mirrored := map[bool]int{}, map[bool]int{}, 0
	for _, p := range k.table.List() {
		if !p.Absent {
			desired[p.Static]++
		}
		if admission.Holds(&p) {
			active[p.Static]++
			if p.Static {
				mirrored++
			}
		}
		if slices.ContainsFunc(p.Input.Sandboxes, func(s podplan.Sandbox) bool { return s.Ready }) {
			pods++
		}
		for i := range p.Input.Containers {
			states[strings.ToLower(string(p.Input.Containers[i].State))]++
		}
	}
	metrics.RunningPods.Set(float64(pods))
	for state, n := range states {
		metrics.RunningContainers.WithLabelValues(state).Set(float64(n))
	}
	for _, static := range []bool{false, true} {
		metrics.DesiredPods.WithLabelValues(boolText(static)).Set(float64(desired[static]))
		metrics.ActivePods.WithLabelValues(boolText(static)).Set(float64(active[static]))
	}
	metrics.MirrorPods.Set(float64(mirrored))
	metrics.NodeName.WithLabelValues(k.cfg.NodeName).Set(1)
	k.refreshCertificates()
	k.refreshVolumes()
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func (k *Kubelet) refreshCertificates() {
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

func (k *Kubelet) refreshVolumes() {
	for _, g := range metrics.Volumes {
		g.Reset()
	}
	if k.stats == nil {
		return
	}
	for _, v := range k.stats.Claims() {
		for name, n := range map[string]*uint64{
			"capacity_bytes": v.CapacityBytes, "available_bytes": v.AvailableBytes, "used_bytes": v.UsedBytes,
			"inodes": v.Inodes, "inodes_free": v.InodesFree, "inodes_used": v.InodesUsed,
		} {
			if n != nil {
				metrics.Volumes[name].WithLabelValues(v.PVCRef.Namespace, v.PVCRef.Name).Set(float64(*n))
			}
		}
	}
}

// probeMeter writes the series of /metrics/probes; those of a pod are removed with it.
type probeMeter struct{}

// Probed implements prober.Meter. The time of a failed probe is not measured.
func (probeMeter) Probed(kind, result string, pod *v1.Pod, container string, took time.Duration) {
	metrics.Probes.WithLabelValues(kind, result, container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	if result != prober.Failed {
		metrics.ProbeDuration.WithLabelValues(kind, container, pod.Name, pod.Namespace).Observe(took.Seconds())
	}
}

// Forget implements prober.Meter.
func (probeMeter) Forget(pod *v1.Pod) {
	for c := range pods.Containers(&pod.Spec) {
		for _, kind := range []string{prober.Startup, prober.Liveness, prober.Readiness} {
			labels := map[string]string{"probe_type": kind, "container": c.Name, "pod": pod.Name, "namespace": pod.Namespace}
			metrics.ProbeDuration.Delete(labels)
			labels["pod_uid"] = string(pod.UID)
			for _, result := range []string{prober.Successful, prober.Failed, prober.Unknown} {
				labels["result"] = result
				metrics.Probes.Delete(labels)
			}
		}
	}
}

// podStarted measures how long a pod took to start, from its creation and from when we first saw
// it.
func podStarted(pod *v1.Pod, seen time.Time, pulling time.Duration) {
	now := time.Now()
	metrics.PodStart.Observe(now.Sub(seen).Seconds())
	if created := pod.CreationTimestamp; !created.IsZero() {
		metrics.PodStartTotal.Observe(now.Sub(created.Time).Seconds())
		metrics.PodStartSLI.Observe((now.Sub(created.Time) - pulling).Seconds())
	}
}
