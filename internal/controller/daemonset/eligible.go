package daemonset

import (
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
)

// judge decides which nodes a DaemonSet is for.
type judge struct {
	nodeName    string
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []v1.Toleration
}

// verdict is about one node: whether a pod should be made there, and whether one that is there may stay.
type verdict struct{ run, stay bool }

func newJudge(ds *appsv1.DaemonSet) judge {
	spec := &ds.Spec.Template.Spec
	return judge{
		nodeName: spec.NodeName, affinity: nodeaffinity.GetRequiredNodeAffinity(&v1.Pod{Spec: *spec}),
		tolerations: tolerations(spec),
	}
}

// RunsOn reports whether the DaemonSet wants a pod on the node.
func RunsOn(ds *appsv1.DaemonSet, n *v1.Node) bool { return newJudge(ds).of(n).run }

// NodeOf returns the node that a daemon's pod is on, or is meant for.
func NodeOf(p *v1.Pod) (node string, ok bool) { return nodeOf(p) }

// of judges a node. One that is nil is none.
func (j judge) of(n *v1.Node) verdict {
	if n == nil || j.nodeName != "" && j.nodeName != n.Name {
		return verdict{}
	}
	// What cannot be parsed matches nothing.
	if ok, err := j.affinity.Match(n); err != nil || !ok {
		return verdict{}
	}
	stay := !j.repelled(n, v1.TaintEffectNoExecute)
	return verdict{run: stay && !j.repelled(n, v1.TaintEffectNoSchedule), stay: stay}
}

// repelled reports whether the node has a taint of the effect that the pods do not tolerate. The
// scheduler asks in the same way.
func (j judge) repelled(n *v1.Node, effect v1.TaintEffect) bool {
	_, found := corev1.FindMatchingUntoleratedTaint(klog.Logger{}, n.Spec.Taints, j.tolerations,
		func(t *v1.Taint) bool { return t.Effect == effect }, true)
	return found
}

// tolerations returns those of the template, and those that every daemon has: what is wrong with a node
// does not keep it away.
func tolerations(spec *v1.PodSpec) []v1.Toleration {
	taint := func(key string, effect v1.TaintEffect) v1.Toleration {
		return v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: effect}
	}
	add := []v1.Toleration{
		taint(v1.TaintNodeNotReady, v1.TaintEffectNoExecute),
		taint(v1.TaintNodeUnreachable, v1.TaintEffectNoExecute),
		taint(v1.TaintNodeDiskPressure, v1.TaintEffectNoSchedule),
		taint(v1.TaintNodeMemoryPressure, v1.TaintEffectNoSchedule),
		taint(v1.TaintNodePIDPressure, v1.TaintEffectNoSchedule),
		taint(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule),
	}
	if spec.HostNetwork {
		add = append(add, taint(v1.TaintNodeNetworkUnavailable, v1.TaintEffectNoSchedule))
	}
	out := append([]v1.Toleration(nil), spec.Tolerations...)
	for _, t := range add {
		out = replaceOrAdd(out, t)
	}
	return out
}

// replaceOrAdd puts a toleration in the place of one for the same taint.
func replaceOrAdd(list []v1.Toleration, t v1.Toleration) []v1.Toleration {
	for i := range list {
		if t.MatchToleration(&list[i]) {
			list[i] = t
			return list
		}
	}
	return append(list, t)
}

// newPod returns a pod for a node. The scheduler binds it: its affinity leaves no other choice.
func newPod(ds *appsv1.DaemonSet, node, hash string) *v1.Pod {
	p := pods.FromTemplate(&ds.Spec.Template, ds, kind)
	p.Spec.Tolerations = tolerations(&p.Spec)
	labels := maps.Clone(p.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	if n, ok := generation(ds); ok {
		labels[templateGenerationKey] = strconv.FormatInt(n, 10)
	}
	labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	p.Labels = labels
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &v1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &v1.NodeAffinity{}
	}
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}
	return p
}

// nodeOf returns the node that a pod is on, or is meant for.
func nodeOf(p *v1.Pod) (node string, ok bool) {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName, true
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return "", false
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == v1.NodeSelectorOpIn {
				return strings.Join(f.Values, ","), len(f.Values) == 1
			}
		}
	}
	return "", false
}

// templateGenerationKey is the label of a pod that has how often the template had changed before it.
const templateGenerationKey = "pod-template-generation"

// generation returns how often the template has changed, by an annotation that may be missing.
func generation(ds *appsv1.DaemonSet) (int64, bool) {
	n, err := strconv.ParseInt(ds.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	return n, err == nil
}

// sameForAll reports whether no DaemonSet judges two states of a node differently.
func sameForAll(a, b *v1.Node) bool {
	return a != nil && b != nil && equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}
