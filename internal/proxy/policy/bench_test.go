package policy

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// large returns a cluster of so many pods, 100 of them here, in ten apps and 100 policies.
func large(pods int) *Facts {
	f := facts()
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range pods {
		p := pod(fmt.Sprint("app-", i%10), func(p *v1.Pod) {
			p.Status.PodIP, p.Status.PodIPs = ip.String(), []v1.PodIP{{IP: ip.String()}}
		})
		if i >= 100 {
			elsewhere(p)
		}
		f.Pods, ip = append(f.Pods, p), ip.Next()
	}
	for i := range 100 {
		f.Policies = append(f.Policies, policy(fmt.Sprint("p", i), on(fmt.Sprint("app-", i%10)),
			fromOn([]networkingv1.NetworkPolicyPort{access1(v1.ProtocolTCP, 1000+10*i, 0)}, pods0(fmt.Sprint("app-", (i+i/10)%10)))))
	}
	return f
}

func BenchmarkPlan(b *testing.B) {
	f := large(5000)
	for b.Loop() {
		NewPlan(f)
	}
}

func BenchmarkContent(b *testing.B) {
	f := large(5000)
	p := NewPlan(f)
	var n numbers
	for b.Loop() {
		c := n.content(&p)
		c.elements.without(c.elements)
	}
}

// BenchmarkOnePod is one more pod elsewhere, from the facts to the kernel.
func BenchmarkOnePod(b *testing.B) {
	m := newMachine(b)
	m.facts = large(5000)
	p := NewPlan(m.facts)
	m.check(m.kernel.replace(&p))
	all := m.facts.Pods
	for i := 0; b.Loop(); i++ {
		m.facts.Pods = all[:len(all)-i%2]
		p := NewPlan(m.facts)
		m.check(m.kernel.apply(&p))
	}
}

// BenchmarkAdmitWithoutPolicies is what the start of a pod pays on a node without policies.
func BenchmarkAdmitWithoutPolicies(b *testing.B) {
	e, err := New(Config{Node: "n"}, informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if err != nil {
		b.Fatal(err)
	}
	who, addresses := identityOf(pod("a")), addressesBy("a")
	for b.Loop() {
		if err := e.Admit(b.Context(), "sandbox", who, addresses); err != nil {
			b.Fatal(err)
		}
	}
}
