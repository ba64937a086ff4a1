package main

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	namespaces = "ns-0 ns-1 ns-2"
	labelTeam  = "team" // of namespaces
	teams      = "red blue"
	labelApp   = "app"
	apps       = "web db job"
	labelTier  = "tier"
	tiers      = "front back"
	labelHash  = "hash" // of what a Deployment's revision is
	podImages  = "registry.example/small:1 registry.example/web:1 registry.example/data:2 huge"
)

// born is about when pods have started.
var born = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// pod returns a random pod that has no node. One that comes gets its name later.
func (d dice) pod(name string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: d.word(namespaces),
			Labels: map[string]string{labelApp: d.word(apps), labelTier: d.word(tiers), labelHash: d.word("1 2")},
		},
		Spec: v1.PodSpec{
			Priority:                      d.priority(name),
			TerminationGracePeriodSeconds: new(int64(0)),
		},
	}
	d.containers(p)
	if d.chance(3) {
		p.Spec.Tolerations = d.tolerations()
	}
	if d.often(6, "") {
		p.Spec.NodeSelector = map[string]string{labelDisk: d.word(disks)}
	}
	if d.often(4, "") {
		d.nodeAffinity(p)
	}
	if d.often(3, focusAffinity) {
		d.podAffinity(p)
	}
	if d.often(3, focusSpread) {
		d.spread(p)
	}
	if d.often(5, focusVolumes) {
		d.volumes(p)
	}
	if d.often(3, focusSets) {
		d.owned(p)
		p.Spec.TopologySpreadConstraints = nil
	}
	if name == "" && d.often(6, focusDevices) {
		d.useDevices(p)
	}
	if d.often(8, focusDevices) {
		d.useExtended(p)
	}
	p.Spec.SchedulerName = one(d, v1.DefaultSchedulerName, v1.DefaultSchedulerName, profilePacked, profileRatio)
	if d.chance(12) {
		p.Spec.PreemptionPolicy = new(v1.PreemptNever)
	}
	return p
}

// priority returns a pod's. Where preemption matters, most of those that come are more important than what is there.
func (d dice) priority(name string) *int32 {
	if d.focus == focusPreemption && !d.chance(4) {
		if name == "" {
			return new(int32(100))
		}
		return new(one(d, int32(-5), 0, 0, 10))
	}
	return one(d, nil, new(int32(0)), new(int32(10)), new(int32(100)), new(int32(-5)))
}

// running returns a random pod on a node, without asking whether it may be there.
func (d dice) running(name, node string, i int) *v1.Pod {
	p := d.pod(name)
	p.Spec.NodeName = node
	started := metav1.NewTime(born.Add(time.Duration(i) * time.Minute))
	p.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &started}
	if d.chance(25) {
		p.Status.Phase = one(d, v1.PodSucceeded, v1.PodFailed)
	}
	if d.chance(4) {
		d.resize(p)
	}
	if d.chance(20) {
		p.Finalizers = []string{finalizer} // it will be terminating
	}
	return p
}

// finalizer keeps pods that are to be terminating.
const finalizer = "differential.wherry.dev/stays"

func (d dice) containers(p *v1.Pod) {
	for i := range 1 + d.IntN(2) {
		c := v1.Container{Name: fmt.Sprint("c-", i), Image: d.word(podImages)}
		c.Resources.Requests = d.requests()
		if d.focus == focusPreemption && p.Name == "" {
			c.Resources.Requests[v1.ResourceCPU] = resource.MustParse(d.word("1 1500m 2"))
		}
		if i == 0 && d.chance(6) {
			c.Ports = append(c.Ports, v1.ContainerPort{
				ContainerPort: 80, HostPort: int32(8080 + d.IntN(2)), HostIP: one(d, "", "", "127.0.0.1", "10.0.0.1"),
				Protocol: one(d, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP),
			})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	if d.chance(6) {
		c := v1.Container{Name: "init", Image: "registry.example/small:1"}
		c.Resources.Requests = d.requests()
		if d.chance(2) {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	switch d.IntN(20) {
	case 0:
		p.Spec.Overhead = cpuAndMemory("50m", "30Mi")
	case 1: // more than all containers together
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("5")}}
	case 2:
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("14Gi")}}
	}
	// Never overhead and resources of the whole pod: then upstream takes the overhead for a request of memory, and does
	// not add what its own comment says it adds for containers without one.
}

func cpuAndMemory(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func (d dice) requests() v1.ResourceList {
	out := v1.ResourceList{}
	if !d.chance(4) {
		out[v1.ResourceCPU] = resource.MustParse(d.word("50m 100m 250m 500m 1 1500m"))
	}
	if !d.chance(4) {
		out[v1.ResourceMemory] = resource.MustParse(d.word("64Mi 128Mi 500Mi 1Gi 2Gi"))
	}
	if d.chance(10) {
		out[v1.ResourceEphemeralStorage] = resource.MustParse("2Gi")
	}
	return out
}

// resize has the kubelet say that a container has other resources than its specification asks for.
func (d dice) resize(p *v1.Pod) {
	asks := p.Spec.Containers[0].Resources.Requests
	if asks.Cpu().IsZero() && asks.Memory().IsZero() {
		return
	}
	has := func() v1.ResourceList {
		return cpuAndMemory(d.word("100m 700m 2"), d.word("128Mi 700Mi"))
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "c-0", AllocatedResources: has(), Resources: &v1.ResourceRequirements{Requests: has()},
	}}
	if d.chance(3) {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
			Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: one(d, v1.PodReasonInfeasible, v1.PodReasonDeferred),
		})
	}
}

func (d dice) tolerations() []v1.Toleration {
	var out []v1.Toleration
	for _, key := range some(d, 2, strings.Fields(taintKeys)...) {
		t := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: one(d, "", d.effect())}
		if d.chance(2) {
			t.Operator, t.Value = v1.TolerationOpEqual, d.word(taintValues)
		} else if d.chance(3) {
			t.Operator, t.Value = one(d, v1.TolerationOpGt, v1.TolerationOpLt), d.upTo(9)
		}
		out = append(out, t)
	}
	if d.chance(8) {
		out = append(out, v1.Toleration{Operator: v1.TolerationOpExists})
	}
	return out
}

func (d dice) nodeAffinity(p *v1.Pod) {
	a := &v1.NodeAffinity{}
	if d.chance(2) {
		terms := []v1.NodeSelectorTerm{d.nodeTerm(), d.nodeTerm()}[:1+d.IntN(2)]
		a.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: terms}
	}
	for range d.IntN(3) {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: int32(1 + d.IntN(100)), Preference: d.nodeTerm()})
	}
	affinityOf(p).NodeAffinity = a
}

func (d dice) nodeTerm() v1.NodeSelectorTerm {
	if d.chance(10) {
		return v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: one(d, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn),
			Values: []string{"n-" + d.upTo(8)},
		}}}
	}
	var t v1.NodeSelectorTerm
	for range 1 + d.IntN(2) {
		r := v1.NodeSelectorRequirement{Key: one(d, v1.LabelTopologyZone, labelRack, labelDisk)}
		values := map[string]string{v1.LabelTopologyZone: zones, labelRack: racks, labelDisk: disks}[r.Key]
		r.Operator = one(d, v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists,
			v1.NodeSelectorOpDoesNotExist)
		if r.Operator == v1.NodeSelectorOpIn || r.Operator == v1.NodeSelectorOpNotIn {
			r.Values = []string{d.word(values), d.word(values)}
		}
		if d.chance(4) {
			r = v1.NodeSelectorRequirement{
				Key: labelGeneration, Operator: one(d, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt),
				Values: []string{d.upTo(9)},
			}
		}
		t.MatchExpressions = append(t.MatchExpressions, r)
	}
	return t
}

func affinityOf(p *v1.Pod) *v1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &v1.Affinity{}
	}
	return p.Spec.Affinity
}

func (d dice) topology() string {
	return one(d, v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyZone, labelRack)
}

// selector selects pods.
func (d dice) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if !d.chance(5) {
		s.MatchLabels = map[string]string{labelApp: d.word(apps)}
	}
	if d.chance(3) {
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{
			Key: labelTier, Operator: one(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn),
			Values: []string{d.word(tiers)},
		}}
	}
	return s
}

func (d dice) podAffinity(p *v1.Pod) {
	var a v1.PodAffinity
	var anti v1.PodAntiAffinity
	if d.chance(3) {
		a.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{d.podTerm()}
	}
	if d.chance(3) {
		anti.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{d.podTerm()}
	}
	var near, far []v1.WeightedPodAffinityTerm
	for range d.IntN(3) {
		t := v1.WeightedPodAffinityTerm{Weight: int32(1 + d.IntN(100)), PodAffinityTerm: d.podTerm()}
		if d.chance(2) {
			near = append(near, t)
		} else {
			far = append(far, t)
		}
	}
	a.PreferredDuringSchedulingIgnoredDuringExecution = near
	anti.PreferredDuringSchedulingIgnoredDuringExecution = far
	affinityOf(p).PodAffinity, affinityOf(p).PodAntiAffinity = &a, &anti
}

func (d dice) podTerm() v1.PodAffinityTerm {
	t := v1.PodAffinityTerm{LabelSelector: d.selector(), TopologyKey: d.topology()}
	switch d.IntN(5) {
	case 0:
		t.Namespaces = []string{d.word(namespaces), d.word(namespaces)}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{labelTeam: d.word(teams)}}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{} // all
	}
	if d.chance(5) {
		t.MatchLabelKeys = []string{labelHash}
	} else if d.chance(6) {
		t.MismatchLabelKeys = []string{labelHash}
	}
	return t
}

func (d dice) spread(p *v1.Pod) {
	for _, key := range some(d, 2, v1.LabelHostname, v1.LabelTopologyZone, labelRack) {
		s := v1.TopologySpreadConstraint{
			MaxSkew: int32(1 + d.IntN(3)), TopologyKey: key, LabelSelector: d.selector(),
			WhenUnsatisfiable: one(d, v1.DoNotSchedule, v1.ScheduleAnyway),
		}
		if s.WhenUnsatisfiable == v1.DoNotSchedule && d.chance(2) {
			s.MinDomains = new(int32(2 + d.IntN(4)))
		}
		s.NodeAffinityPolicy = one(d, nil, new(v1.NodeInclusionPolicyHonor), new(v1.NodeInclusionPolicyIgnore))
		s.NodeTaintsPolicy = one(d, nil, new(v1.NodeInclusionPolicyHonor), new(v1.NodeInclusionPolicyIgnore))
		if d.chance(4) {
			s.MatchLabelKeys = []string{labelHash}
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, s)
	}
}
