package proxy

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"wherry.dev/internal/netns"
	nft "wherry.dev/internal/proxy/nftables"
)

// many returns service i of 10,000, with n endpoints.
func many(i, n int) (*v1.Service, []*discoveryv1.EndpointSlice) {
	svc := service(func(s *v1.Service) {
		s.Name = fmt.Sprint(i)
		s.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	})
	var all []discoveryv1.Endpoint
	for j := range n {
		all = append(all, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 100+j, i/250, i%250+1)}})
	}
	return svc, slices4(all...)
}

// BenchmarkChangeAmong10000Services changes the endpoints of one service of 10,000 with five each.
func BenchmarkChangeAmong10000Services(b *testing.B) {
	s, c := newState(), change{}
	for i := range 10000 {
		svc, all := many(i, 5)
		s.set("a/"+svc.Name, Plan(svc, all, Node{Name: "n"}), &c)
	}
	dir := b.TempDir() + "/ns"
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		b.Skip("needs root: ", err)
	}
	b.Cleanup(func() { _ = netns.Remove(dir) })
	err := netns.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		k := kernel{conn: conn, table: "wherry-bench-proxy"}
		if err := k.replace(s); err != nil {
			return err
		}
		n := 0
		for b.Loop() {
			n++
			svc, all := many(n%10000, 4+n/10000%2)
			var c change
			s.set("a/"+svc.Name, Plan(svc, all, Node{Name: "n"}), &c)
			if err := k.apply(s, c); err != nil {
				return err
			}
		}
		return nil
	}, netns.Path(dir, netns.Net))
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkReplaceTableOf10000Services writes the whole table.
func BenchmarkReplaceTableOf10000Services(b *testing.B) {
	s, c := newState(), change{}
	for i := range 10000 {
		svc, all := many(i, 5)
		s.set("a/"+svc.Name, Plan(svc, all, Node{Name: "n"}), &c)
	}
	dir := b.TempDir() + "/ns"
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		b.Skip("needs root: ", err)
	}
	b.Cleanup(func() { _ = netns.Remove(dir) })
	err := netns.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		k := kernel{conn: conn, table: "wherry-bench-proxy"}
		for b.Loop() {
			if err := k.replace(s); err != nil {
				return err
			}
		}
		return nil
	}, netns.Path(dir, netns.Net))
	if err != nil {
		b.Fatal(err)
	}
}
