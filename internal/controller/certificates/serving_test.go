package certificates

import (
	"crypto/x509"
	"net"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/pki"
)

func kubelets(f informers.SharedInformerFactory) *Kubelets { return NewKubelets(f, []string{"server"}) }

func addNode(t *testing.T, c *fake.Clientset, name string, ready corev1.ConditionStatus, ips ...string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	if _, err := c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// A node gets a serving certificate for what only it is called, and for nothing by which anybody finds another node or
// the API server, whatever it says of itself.
func TestServingCertificatesAreForOneNodeAlone(t *testing.T) {
	playWith(t, nil, kubelets, func(t *testing.T, c *fake.Clientset, _ *pki.CA) {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}}},
		}
		if _, err := c.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		addNode(t, c, "n1", corev1.ConditionTrue, "192.0.2.1", "192.0.2.9", "192.0.2.2", "127.0.0.1")
		addNode(t, c, "n2", corev1.ConditionTrue, "192.0.2.2")
		addNode(t, c, "kubernetes.default", corev1.ConditionTrue, "192.0.2.3")
		addNode(t, c, "server", corev1.ConditionTrue, "192.0.2.4")
		ask := func(name, of, by string, names []string, ips ...string) bool {
			t.Helper()
			tmpl := x509.CertificateRequest{Subject: node(of), DNSNames: names}
			for _, ip := range ips {
				tmpl.IPAddresses = append(tmpl.IPAddresses, net.ParseIP(ip))
			}
			r := create(t, c, request(t, name, "system:node:"+by, certificatesv1.KubeletServingSignerName, tmpl, certificatesv1.UsageServerAuth))
			return len(r.Status.Certificate) > 0
		}
		if !ask("own", "n1", "n1", []string{"n1"}, "192.0.2.1") {
			t.Errorf("a node does not get its certificate: %+v", get(t, c, "own").Status)
		}
		for what, got := range map[string]bool{
			"for another node":                 ask("a", "n2", "n1", []string{"n2"}, "192.0.2.2"),
			"for the address of another node":  ask("b", "n1", "n1", []string{"n1"}, "192.0.2.2"),
			"for the address of an API server": ask("c", "n1", "n1", []string{"n1"}, "192.0.2.9"),
			"for localhost":                    ask("d", "n1", "n1", []string{"n1"}, "127.0.0.1"),
			"for an address that it lacks":     ask("e", "n1", "n1", []string{"n1"}, "192.0.2.77"),
			"for a name that it lacks":         ask("f", "n1", "n1", []string{"n1", "n1.example.com"}, "192.0.2.1"),
			"for the API server's name":        ask("g", "kubernetes.default", "kubernetes.default", []string{"kubernetes.default"}, "192.0.2.3"),
			"for the server's own name":        ask("h", "server", "server", []string{"server"}, "192.0.2.4"),
			"for a node that nobody knows":     ask("i", "n3", "n3", []string{"n3"}, "192.0.2.5"),
		} {
			if got {
				t.Errorf("a node gets a certificate %s", what)
			}
		}
	})
}

// A token makes nobody a node that is there; one that is silent may come back with a new key.
func TestNobodyGetsTheNameOfANodeThatIsReady(t *testing.T) {
	playWith(t, map[string]string{"bootstrap": "nodeclient"}, kubelets, func(t *testing.T, c *fake.Clientset, _ *pki.CA) {
		addNode(t, c, "alive", corev1.ConditionTrue)
		addNode(t, c, "silent", corev1.ConditionUnknown)
		ask := func(of string) bool {
			t.Helper()
			r := create(t, c, request(t, of, "bootstrap", certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: node(of)}, certificatesv1.UsageClientAuth))
			return len(r.Status.Certificate) > 0
		}
		if ask("alive") || !ask("silent") || !ask("new") {
			t.Error("want certificates for the nodes that are silent or new, and none for the one that is Ready")
		}
		n, err := c.CoreV1().Nodes().Get(t.Context(), "alive", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(get(t, c, "alive").Status.Certificate) == 0 {
			t.Error("a node that has become silent does not get a new certificate")
		}
	})
}
