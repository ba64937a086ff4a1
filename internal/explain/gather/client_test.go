package gather

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestParseFrom(t *testing.T) {
	for arg, want := range map[string]From{
		"pod/a": {Pod: Target{"Pod", "ns", "a"}}, "a": {Pod: Target{"Pod", "ns", "a"}}, "svc/a": {}, "": {},
	} {
		got, err := ParseFrom(arg, "ns")
		if got != want || (err != nil) != (want == From{}) {
			t.Errorf("%q: %+v, %v", arg, got, err)
		}
	}
	if got, err := ParseFrom("::ffff:10.0.0.1", "ns"); err != nil || got.Address.String() != "10.0.0.1" {
		t.Errorf("%+v, %v", got, err)
	}
}

// guardedWeb is a service with a pod that lets in what is in a namespace of team x, and clients elsewhere.
func guardedWeb() []runtime.Object {
	named := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: meta(namespace+name, "").UID, Labels: web}
	}
	home := func(name, team string) *v1.Namespace {
		return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
	}
	ready := v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.1", Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}
	spec := v1.PodSpec{Containers: []v1.Container{{Name: "c", Ports: []v1.ContainerPort{{ContainerPort: 80}}}}}
	return []runtime.Object{
		home("ns", "own"), home("friends", "x"), home("others", "y"),
		&v1.Pod{ObjectMeta: named("ns", "its"), Spec: spec, Status: ready},
		&v1.Pod{ObjectMeta: named("friends", "client")}, &v1.Pod{ObjectMeta: named("others", "client")},
		&v1.Service{ObjectMeta: named("ns", "web"), Spec: v1.ServiceSpec{Selector: web, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}}},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}},
		&networkingv1.NetworkPolicy{ObjectMeta: named("ns", "friends-only"), Spec: networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}}}}},
		}},
	}
}

// Which policy keeps a client out goes by the labels of its namespace.
func TestReachFromAnotherNamespace(t *testing.T) {
	for _, to := range []Target{{"Service", "ns", "web"}, {"Pod", "ns", "its"}} {
		for namespace, refused := range map[string]bool{"friends": false, "others": true} {
			x, err := Reach(t.Context(), noScheduler(guardedWeb()...), to, From{Pod: Target{"Pod", namespace, "client"}})
			if err != nil {
				t.Fatal(err)
			}
			by := ""
			for _, w := range x.Waits {
				by += w.Step + ": " + w.Said
			}
			if refused != strings.Contains(by, "pod "+namespace+"/client is refused") || refused != strings.Contains(by, "policy friends-only selects the pod") {
				t.Errorf("%s from %s: %+v", to.Kind, namespace, x)
			}
		}
	}
}

// What nobody knows is not said: without the policies there is no answer.
func TestReachWithoutPolicies(t *testing.T) {
	client := fake.NewClientset(guardedWeb()...)
	client.PrependReactor("list", "networkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("may not be read")
	})
	for _, to := range []Target{{"Service", "ns", "web"}, {"Pod", "ns", "its"}} {
		if x, err := Reach(t.Context(), client, to, From{Pod: Target{"Pod", "others", "client"}}); err == nil {
			t.Errorf("%+v", x)
		}
	}
	if _, err := Reach(t.Context(), fake.NewClientset(guardedWeb()...), Target{"Job", "ns", "j"}, From{Pod: Target{"Pod", "others", "client"}}); err == nil {
		t.Error("a job is reached")
	}
	if _, err := Reach(t.Context(), fake.NewClientset(guardedWeb()...), Target{"Pod", "ns", "its"}, From{Pod: Target{"Pod", "others", "none"}}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
