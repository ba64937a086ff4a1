// Package gauges works out, whenever somebody reads the kubelet's metrics, those that only a look at
// the node's present state can tell.
package gauges

import (
	"math"
	"slices"
	"strings"
	"time"

	basemetrics "k8s.io/component-base/metrics"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Gauges are those of one node.
type Gauges struct {
	NodeName string
	// Pods returns the node's pods.
	Pods func() []*podworker.Snapshot
	// Identity and Serving are the certificates that the API server signs; nil if it signs none.
	Identity, Serving *certificates.Manager
	// Claims returns the volumes of claims.
	Claims func() []stats.VolumeStats
}

// Refresh updates the gauges.
func (g *Gauges) Refresh() {
	pods, states := 0, map[string]int{"created": 0, "running": 0, "exited": 0, "unknown": 0}
	desired, active, mirrored := map[bool]int{}, map[bool]int{}, 0
	for _, p := range g.Pods() {
		if !p.Absent {
			desired[p.Static]++
		}
		if admission.Holds(p) {
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
	metrics.NodeName.WithLabelValues(g.NodeName).Set(1)
	g.refreshCertificates()
	g.refreshVolumes()
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func (g *Gauges) refreshCertificates() {
	for gauge, m := range map[*basemetrics.Gauge]*certificates.Manager{metrics.ClientTTL: g.Identity, metrics.ServerTTL: g.Serving} {
		left := math.Inf(1)
		if m != nil {
			if ttl, ok := m.TTL(time.Now()); ok {
				left = ttl
			}
		}
		gauge.Set(left)
	}
}

func (g *Gauges) refreshVolumes() {
	for _, gauge := range metrics.Volumes {
		gauge.Reset()
	}
	for _, v := range g.Claims() {
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
