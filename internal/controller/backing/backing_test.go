package backing

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func pod(changes ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "web", "tier": "front"}},
		Status:     v1.PodStatus{PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}},
	}
	for _, f := range changes {
		f(p)
	}
	return p
}

func label(k, v string) func(*v1.Pod) { return func(p *v1.Pod) { p.Labels[k] = v } }

// serviceIndex is the store of an informer with services "a/N", by their selectors.
func serviceIndex(t *testing.T, selectors ...map[string]string) cache.Indexer {
	t.Helper()
	informer := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Services().Informer()
	for range 2 { // several controllers do so
		if err := IndexServices(informer); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range selectors {
		svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i)}, Spec: v1.ServiceSpec{Selector: s}}
		if err := informer.GetIndexer().Add(svc); err != nil {
			t.Fatal(err)
		}
	}
	return informer.GetIndexer()
}

func TestServices(t *testing.T) {
	services := serviceIndex(t, map[string]string{"app": "web"}, map[string]string{"app": "web", "tier": "front"},
		map[string]string{"app": "web", "tier": "back"}, nil, map[string]string{"app": "db"})
	for name, tt := range map[string]struct {
		old, pod *v1.Pod
		want     []string
	}{
		"a new pod":             {pod: pod(), want: []string{"a/0", "a/1"}},
		"one that is gone":      {old: pod(), want: []string{"a/0", "a/1"}},
		"nothing that matters":  {old: pod(), pod: pod(func(p *v1.Pod) { p.ResourceVersion = "9"; p.Annotations = map[string]string{"x": "y"} })},
		"readiness":             {old: pod(), pod: pod(func(p *v1.Pod) { p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: "True"}} }), want: []string{"a/0", "a/1"}},
		"a label":               {old: pod(), pod: pod(label("app", "db")), want: []string{"a/0", "a/1", "a/4"}},
		"an address":            {old: pod(func(p *v1.Pod) { p.Status = v1.PodStatus{} }), pod: pod(), want: []string{"a/0", "a/1"}},
		"its deletion":          {old: pod(), pod: pod(func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }), want: []string{"a/0", "a/1"}},
		"its end":               {old: pod(), pod: pod(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }), want: []string{"a/0", "a/1"}},
		"in another namespace":  {pod: pod(func(p *v1.Pod) { p.Namespace = "b" })},
		"a pod without labels":  {pod: pod(func(p *v1.Pod) { p.Labels = nil })},
		"a label of no service": {pod: pod(func(p *v1.Pod) { p.Labels = map[string]string{"app": "x"} })},
	} {
		got, err := Services(services, tt.old, tt.pod)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tt.want)
		}
	}
}

func BenchmarkServicesOf10000(b *testing.B) {
	informer := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Services().Informer()
	if err := IndexServices(informer); err != nil {
		b.Fatal(err)
	}
	for i := range 10000 {
		svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i)}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": fmt.Sprint(i)}}}
		if err := informer.GetIndexer().Add(svc); err != nil {
			b.Fatal(err)
		}
	}
	p := pod(label("app", "77"))
	for b.Loop() {
		if got, err := Services(informer.GetIndexer(), nil, p); err != nil || len(got) != 1 {
			b.Fatal(got, err)
		}
	}
}

func address(ip string) v1.EndpointAddress { return v1.EndpointAddress{IP: ip} }

func port(n int32) v1.EndpointPort { return v1.EndpointPort{Port: n, Protocol: v1.ProtocolTCP} }

func TestCanonical(t *testing.T) {
	a, b := address("10.0.0.1"), address("10.0.0.2")
	for name, tt := range map[string]struct{ in, want []v1.EndpointSubset }{
		"nothing": {nil, []v1.EndpointSubset{}},
		"the same addresses": {
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{b, a}, Ports: []v1.EndpointPort{port(2)}}, {Addresses: []v1.EndpointAddress{a, b}, Ports: []v1.EndpointPort{port(1)}}},
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{a, b}, Ports: []v1.EndpointPort{port(1), port(2)}}},
		},
		"different addresses": {
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{a}, Ports: []v1.EndpointPort{port(1), port(2)}}, {Addresses: []v1.EndpointAddress{b}, Ports: []v1.EndpointPort{port(2)}}},
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{a}, Ports: []v1.EndpointPort{port(1)}}, {Addresses: []v1.EndpointAddress{a, b}, Ports: []v1.EndpointPort{port(2)}}},
		},
		"not ready wins": {
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{a}, NotReadyAddresses: []v1.EndpointAddress{a}, Ports: []v1.EndpointPort{port(1)}}},
			[]v1.EndpointSubset{{NotReadyAddresses: []v1.EndpointAddress{a}, Ports: []v1.EndpointPort{port(1)}}},
		},
		"without ports": {
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{a}}, {Addresses: []v1.EndpointAddress{b}}},
			[]v1.EndpointSubset{{Addresses: []v1.EndpointAddress{a, b}}},
		},
	} {
		for range 10 { // maps are read in a random order
			if got := Canonical(tt.in); !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("%s: %+v", name, got)
			}
			if got := Canonical(Canonical(tt.in)); !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("%s, twice: %+v", name, got)
			}
		}
	}
}
