package plugins

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// declared makes a node declare features.
func declared(features ...string) func(*v1.Node) {
	return func(n *v1.Node) { n.Status.DeclaredFeatures = features }
}

const restartsAll = "RestartAllContainersOnContainerExits"

func TestNodeDeclaredFeatures(t *testing.T) {
	needs := func(p *v1.Pod) {
		p.Spec.Containers = []v1.Container{{RestartPolicyRules: []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}}}
	}
	const lacks = "!node(s) didn't match Pod's required features"
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		node func(*v1.Node)
		want string
	}{
		"nothing needed":           {makePod(requests("cpu=1")), declared(), ""},
		"it is there":              {makePod(needs), declared(restartsAll), ""},
		"among others, in any way": {makePod(needs), declared("Zzz", restartsAll, "Unknown"), ""},
		"it is not there":          {makePod(needs), declared("Unknown"), lacks},
		"nothing is declared":      {makePod(needs), nil, lacks},
	} {
		if got := filter(t, NodeDeclaredFeatures{}, tc.pod, makeNode(t, tc.node)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestNodeDeclaredFeaturesHint(t *testing.T) {
	before, after := &v1.Node{}, &v1.Node{}
	declared(restartsAll)(after)
	for name, tc := range map[string]struct {
		old, obj any
		want     fwk.QueueingHint
	}{
		"a new node":       {nil, before, fwk.Queue},
		"it declares more": {before, after, fwk.Queue},
		"it says the same": {after, after, fwk.QueueSkip},
	} {
		if got, err := declares(klog.Background(), makePod(), tc.old, tc.obj); got != tc.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
