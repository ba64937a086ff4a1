package loadbalancer

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func node(ready v1.ConditionStatus, addresses ...string) *v1.Node {
	n := &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}
	for _, a := range addresses {
		kind, ip, _ := strings.Cut(a, " ")
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeAddressType(kind), Address: ip})
	}
	return n
}

// TestPortsOfTheNode: a service took the place of SSH or of the API server at the nodes' addresses.
func TestPortsOfTheNode(t *testing.T) {
	for name, tt := range map[string]struct {
		ports []v1.ServicePort
		want  int32
	}{
		"another":   {[]v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}, 0},
		"SSH":       {[]v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}, {Port: 22, Protocol: v1.ProtocolTCP}}, 22},
		"22 of UDP": {[]v1.ServicePort{{Port: 22, Protocol: v1.ProtocolUDP}}, 0},
	} {
		if got := conflict(&v1.Service{Spec: v1.ServiceSpec{Ports: tt.ports}}, NodePorts); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestWanted(t *testing.T) {
	excluded := node("True", "InternalIP 10.0.0.9")
	excluded.Labels = map[string]string{v1.LabelNodeExcludeBalancers: ""}
	going := node("True", "InternalIP 10.0.0.8")
	going.DeletionTimestamp = new(metav1.Now())
	for name, tt := range map[string]struct {
		nodes    []*v1.Node
		families []v1.IPFamily
		want     string
	}{
		"no node":             {nil, []v1.IPFamily{v1.IPv4Protocol}, ""},
		"all nodes, in order": {[]*v1.Node{node("True", "InternalIP 10.0.0.2", "Hostname x"), node("True", "InternalIP 10.0.0.1")}, []v1.IPFamily{v1.IPv4Protocol}, "10.0.0.1 10.0.0.2"},
		"not the others":      {[]*v1.Node{node("False", "InternalIP 10.0.0.2"), node("Unknown", "InternalIP 10.0.0.3"), excluded, going}, []v1.IPFamily{v1.IPv4Protocol}, ""},
		"external ones":       {[]*v1.Node{node("True", "InternalIP 10.0.0.2", "ExternalIP 192.0.2.1")}, []v1.IPFamily{v1.IPv4Protocol}, "192.0.2.1"},
		"two families":        {[]*v1.Node{node("True", "InternalIP 10.0.0.2", "InternalIP fd00::2")}, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, "10.0.0.2 fd00::2"},
		"one of two":          {[]*v1.Node{node("True", "InternalIP 10.0.0.2", "InternalIP fd00::2")}, []v1.IPFamily{v1.IPv6Protocol}, "fd00::2"},
		"loopback is no use":  {[]*v1.Node{node("True", "InternalIP 127.0.0.1")}, []v1.IPFamily{v1.IPv4Protocol}, ""},
	} {
		var got []string
		for _, in := range wanted(&v1.Service{Spec: v1.ServiceSpec{IPFamilies: tt.families}}, tt.nodes) {
			got = append(got, in.IP)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v; want %s", name, got, tt.want)
		}
	}
}

// TestTrafficThatStaysLocal: clients were sent to nodes that had no pod of the service, and dropped what they got.
func TestTrafficThatStaysLocal(t *testing.T) {
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	c, err := New(nil, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, ip := range map[string]string{"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"} {
		n := node("True", "InternalIP "+ip)
		n.Name = name
		if err := c.nodes.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	slices := f.Discovery().V1().EndpointSlices().Informer().GetIndexer()
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv4Protocol}}}
	at := func(node string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	for _, tt := range []struct {
		policy    v1.ServiceExternalTrafficPolicy
		endpoints []discoveryv1.Endpoint
		want      string
	}{
		{v1.ServiceExternalTrafficPolicyCluster, []discoveryv1.Endpoint{at("n2", true)}, "10.0.0.1 10.0.0.2 10.0.0.3"},
		{v1.ServiceExternalTrafficPolicyLocal, []discoveryv1.Endpoint{at("n2", true), at("n3", false), {}}, "10.0.0.2"},
		{v1.ServiceExternalTrafficPolicyLocal, []discoveryv1.Endpoint{at("n2", true), at("n3", true)}, "10.0.0.2 10.0.0.3"},
		{v1.ServiceExternalTrafficPolicyLocal, []discoveryv1.Endpoint{at("n2", false)}, "10.0.0.1 10.0.0.2 10.0.0.3"},
	} {
		svc.Spec.ExternalTrafficPolicy = tt.policy
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}}, Endpoints: tt.endpoints,
		}
		if err := slices.Update(slice); err != nil {
			t.Fatal(err)
		}
		nodes, err := c.candidates(svc)
		var got []string
		for _, in := range wanted(svc, nodes) {
			got = append(got, in.IP)
		}
		if err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%s, %v: %v, %v; want %s", tt.policy, tt.endpoints, got, err, tt.want)
		}
	}
}
