package manager_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	vocabulary "wherry.dev/internal/api/cluster"
	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/clusterinfo"
	"wherry.dev/internal/controller/manager"
)

// Nodes get ranges that do not overlap, whatever some came with; one that goes leaves its own to one that waits.
func TestNodesGetTheirAddresses(t *testing.T) {
	c := start(t, func(_ *apiserver.Server, cfg *manager.Config) {
		o := manager.DefaultOptions()
		o.Ranges = manager.NodeRanges{Allocate: true, Cluster: "10.244.0.0/22,fd00::/48", Services: "10.244.3.0/24"}
		cfg.Options = &o
	}, "node-ipam-controller")
	ctx, nodes := t.Context(), c.CoreV1().Nodes()
	create := func(name string, ranges ...string) {
		t.Helper()
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: ranges}}
		if len(ranges) > 0 {
			n.Spec.PodCIDR = ranges[0]
		}
		if _, err := nodes.Create(ctx, n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	has := func(name string) (out []string) {
		t.Helper()
		await(t, nodes, name, func(n *v1.Node, _ bool) bool { out = n.Spec.PodCIDRs; return len(out) > 0 })
		return out
	}
	create("theirs", "10.244.0.0/25")
	create("a")
	create("b")
	var all []netip.Prefix
	for _, name := range []string{"theirs", "a", "b"} {
		for _, text := range has(name) {
			p := netip.MustParsePrefix(text)
			if slices.ContainsFunc(all, p.Overlaps) || p.Overlaps(netip.MustParsePrefix("10.244.3.0/24")) {
				t.Errorf("%s has %s, beside %v", name, p, all)
			}
			all = append(all, p)
		}
	}
	create("late")
	c.said(t, "late", "CIDRNotAvailable")
	if err := nodes.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := has("late"); len(got) != 2 || netip.MustParsePrefix(got[0]) != all[len(all)-2] {
		t.Errorf("the range of the node that went is %v, the one that waited got %v", all[len(all)-2], got)
	}
}

// A node that is deleted while it runs registers again, and gets the range that its pods' addresses are of.
func TestANodeThatRegistersAgainKeepsItsAddresses(t *testing.T) {
	c := start(t, func(_ *apiserver.Server, cfg *manager.Config) {
		o := manager.DefaultOptions()
		o.Ranges = manager.NodeRanges{Allocate: true, Cluster: "10.244.0.0/16"}
		cfg.Options = &o
	}, "node-ipam-controller")
	nodes := c.CoreV1().Nodes()
	has := map[string]string{}
	for _, name := range []string{"a", "b", "a", "c"} {
		if has[name] != "" {
			if err := nodes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := nodes.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var got string
		await(t, nodes, name, func(n *v1.Node, _ bool) bool { got = n.Spec.PodCIDR; return got != "" })
		if before := has[name]; before != "" && got != before {
			t.Errorf("%s had %s, and has %s", name, before, got)
		}
		for other, r := range has {
			if other != name && r == got {
				t.Errorf("%s has %s, as %s", name, got, other)
			}
		}
		has[name] = got
	}
}

// What everybody may know of the cluster is published, signed with each token that is for that, and nobody else changes it
// for long. A token ends when its time is over.
func TestClusterInfoIsSignedAndTokensEnd(t *testing.T) {
	facts := &vocabulary.Facts{Domain: "cluster.local", Mode: vocabulary.ModeAuto, VNI: 7}
	c := startWith(t, func(cfg *apiserver.Config) { cfg.NodesJoin = true }, func(_ *apiserver.Server, cfg *manager.Config) {
		cfg.Info = clusterinfo.Config{Server: "https://192.0.2.1:6443", CA: []byte("ca"), Facts: facts}
	}, "bootstrap-signer-controller", "token-cleaner-controller")
	ctx := t.Context()
	token := func(id string, life time.Duration, usages ...string) {
		t.Helper()
		s := &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: bootstrap.BootstrapTokenSecretPrefix + id}, Type: bootstrap.SecretTypeBootstrapToken,
			StringData: map[string]string{
				bootstrap.BootstrapTokenIDKey: id, bootstrap.BootstrapTokenSecretKey: "0123456789abcdef",
				bootstrap.BootstrapTokenExpirationKey: time.Now().Add(life).UTC().Format(time.RFC3339),
			},
		}
		for _, u := range usages {
			s.StringData[bootstrap.BootstrapTokenUsagePrefix+u] = "true"
		}
		if _, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	token("aaaaaa", time.Hour, "signing")
	token("bbbbbb", time.Hour, "authentication")
	maps := c.CoreV1().ConfigMaps(metav1.NamespacePublic)
	signed := func(cm *v1.ConfigMap, _ bool) bool {
		want, err := jws.ComputeDetachedSignature(cm.Data[vocabulary.InfoKey], "aaaaaa", "0123456789abcdef")
		return err == nil && cm.Data["jws-kubeconfig-aaaaaa"] == want && cm.Data["jws-kubeconfig-bbbbbb"] == "" && strings.Contains(cm.Data[vocabulary.InfoKey], "192.0.2.1")
	}
	await(t, maps, vocabulary.InfoName, signed)
	cm, err := maps.Get(ctx, vocabulary.InfoName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data[vocabulary.InfoKey] = "of somebody else"
	if _, err := maps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, maps, vocabulary.InfoName, signed)
	await(t, c.CoreV1().ConfigMaps(metav1.NamespaceSystem), vocabulary.FactsName, func(cm *v1.ConfigMap, _ bool) bool {
		got, err := vocabulary.FromData(cm.Data)
		return err == nil && got.VNI == 7
	})
	token("cccccc", time.Second, "signing")
	awaitGone(t, func() error {
		_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, "bootstrap-token-cccccc", metav1.GetOptions{})
		return err
	})
	await(t, maps, vocabulary.InfoName, func(cm *v1.ConfigMap, _ bool) bool { return cm.Data["jws-kubeconfig-cccccc"] == "" })
}
