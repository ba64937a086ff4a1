package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/images"
	"wherry.dev/test/runtimes"
)

// A service of two address families answers at both of its addresses, and at its name; it loses the second
// one, and gets it back, as its policy says.
func TestServiceOfTwoFamilies(t *testing.T) {
	t.Parallel()
	if off, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6"); err != nil || strings.TrimSpace(string(off)) != "0" {
		t.Skip("this machine has no IPv6")
	}
	if _, ok := runtimes.Chosen(); ok {
		t.Skip("the other runtime's network has one family")
	}
	c := newCluster(t)
	for i, flag := range c.flags {
		if flag == "--pod-cidr" || flag == "--service-cidr" {
			parts := strings.Split(c.flags[i+1], ".")
			c.flags[i+1] += fmt.Sprintf(",fd00:%s:%s::/112", parts[1], parts[2])
		}
	}
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--", "sh", "-c", hello)
	c.idle("client")
	c.expose()
	c.rolledOut()
	policy := func(p v1.IPFamilyPolicy) []string {
		c.changeService(func(s *v1.Service) { s.Spec.IPFamilyPolicy = &p })
		svc, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return svc.Spec.ClusterIPs
	}
	ips := policy(v1.IPFamilyPolicyRequireDualStack)
	if len(ips) != 2 {
		t.Fatalf("addresses: %v", ips)
	}
	answers := func(host string) func() bool {
		return func() bool { return len(c.answers("http://"+host, 1)) == 1 }
	}
	c.until("it answers at its IPv4 address", answers(ips[0]))
	c.until("it answers at its IPv6 address", answers("["+ips[1]+"]"))
	if got := c.exec("client", "nslookup", "web.default.svc.cluster.local"); !strings.Contains(got, ips[0]) || !strings.Contains(got, ips[1]) {
		t.Errorf("its name: %s", got)
	}
	if left := policy(v1.IPFamilyPolicySingleStack); !slices.Equal(left, ips[:1]) {
		t.Errorf("with one family: %v of %v", left, ips)
	}
	c.until("nobody answers at an address that is given back", func() bool { return !answers("[" + ips[1] + "]")() })
	c.until("the other address goes on", answers(ips[0]))
	if again := policy(v1.IPFamilyPolicyPreferDualStack); len(again) != 2 || again[0] != ips[0] {
		t.Errorf("with two families again: %v, was %v", again, ips)
	}
}
