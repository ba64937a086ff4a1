package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/pki"
)

// TestKubeletJoinsByBootstrap: a second kubelet joins with nothing but a token. It gets its client
// certificate at once, and its serving certificate once an administrator has approved it.
func TestKubeletJoinsByBootstrap(t *testing.T) {
	c, p := clusterToJoin(t)
	c.kubectl("create", "serviceaccount", "joiner")
	for _, role := range []string{"system:node-bootstrapper", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"} {
		c.kubectl("create", "clusterrolebinding", "join-"+strconv.Itoa(len(role)), "--clusterrole="+role, "--serviceaccount=default:joiner")
	}
	dir := filepath.Join(p.dir, "joined")
	p.joining(dir, strings.TrimSpace(c.kubectl("create", "token", "joiner")))
	p.until("node joined is not Ready", func() bool {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "joined", metav1.GetOptions{})
		return err == nil && nodeReady(n)
	})
	if _, err := os.Stat(filepath.Join(dir, "pki", "kubelet-client-current.pem")); err != nil {
		t.Error(err)
	}
	c.create(busybox("there", func(pod *v1.Pod) { pod.Spec.NodeName = "joined" }))
	c.await("there", "ready", ready)
	if out, err := c.try("kubectl", "logs", "there"); err == nil {
		t.Errorf("a serving certificate that nobody approved is trusted: %s", out)
	} else if !strings.Contains(err.Error(), "kubectl certificate approve") {
		t.Errorf("what to do is not said: %v", err)
	}
	for _, verb := range [][]string{{"exec", "there", "--", "true"}, {"attach", "there"}, {"port-forward", "there", ":80"}} {
		if out, err := c.try(append([]string{"kubectl"}, verb...)...); err == nil || !strings.Contains(err.Error(), "kubectl certificate approve") {
			t.Errorf("what to do is not said to %s: %s %v", verb[0], out, err)
		}
	}
	if out := c.must("explain", "pod/there"); !strings.Contains(out, "kubectl certificate approve") {
		t.Errorf("explain does not say what to do: %s", out)
	}
	serving := ""
	p.until("the kubelet asks for no serving certificate", func() bool {
		list, err := c.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kubelet-serving"})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		serving = list.Items[0].Name
		return true
	})
	c.kubectl("certificate", "approve", serving)
	p.until("kubectl exec does not work", func() bool {
		out, err := c.try("kubectl", "exec", "there", "--", "echo", "hello")
		return err == nil && strings.TrimSpace(out) == "hello"
	})
	if out := c.kubectl("get", "--raw", "/api/v1/nodes/joined/proxy/stats/summary"); !strings.Contains(out, `"name":"there"`) || !strings.Contains(out, "ephemeral-storage") {
		t.Errorf("summary: %s", out)
	}
	if out := c.kubectl("get", "--raw", "/api/v1/nodes/joined/proxy/metrics/cadvisor"); !strings.Contains(out, `container_memory_working_set_bytes{`) || !strings.Contains(out, "machine_cpu_cores{") {
		t.Errorf("cadvisor: %s", out)
	}
	if out := c.kubectl("get", "--raw", "/api/v1/nodes/joined/proxy/configz"); !strings.Contains(out, `"serverTLSBootstrap":true`) {
		t.Errorf("configz: %s", out)
	}
	c.delete("there")
}

// clusterToJoin starts a cluster, and a runtime for a second kubelet.
func clusterToJoin(t *testing.T) (*cluster, *parts) {
	t.Helper()
	needsOwnRuntime(t)
	c := startCluster(t)
	ca, err := pki.LoadOrCreateCA(filepath.Join(c.data, "pki"), "ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := &parts{cluster: c, dir: filepath.Dir(c.data), apiPort: c.flags[3], ca: ca}
	p.runtime()
	return c, p
}

func nodeReady(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// TestCertificateNearItsEndIsRotated starts a kubelet with an hour-long certificate that has
// seconds left: the kubelet carries on with a new one when the old one expires.
func TestCertificateNearItsEndIsRotated(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c, p := clusterToJoin(t)
	dir := filepath.Join(p.dir, "joined")
	// The kubelet must join before that: it has longer on a slow machine.
	end := time.Now().Add(15*time.Second + 5*time.Since(began)).Truncate(time.Second)
	cert, key := p.almostOver(end)
	p.startJoining(dir, "--kubeconfig", p.writeKubeconfig(dir, "kubelet.conf", &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}))
	p.until("node joined is not Ready", func() bool {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "joined", metav1.GetOptions{})
		return err == nil && nodeReady(n)
	})
	current := filepath.Join(dir, "pki", "kubelet-client-current.pem")
	p.until("no new certificate", func() bool {
		pair, err := tls.LoadX509KeyPair(current, current)
		return err == nil && pair.Leaf.NotAfter.After(end) && pair.Leaf.Subject.CommonName == "system:node:joined"
	})
	if target, err := os.Readlink(current); err != nil || !strings.HasPrefix(filepath.Base(target), "kubelet-client-20") {
		t.Errorf("%s -> %s, %v", current, target, err)
	}
	p.until("the old certificate's end", func() bool { return time.Now().After(end) })
	c.create(busybox("there", func(pod *v1.Pod) { pod.Spec.NodeName = "joined" }))
	c.await("there", "ready", ready)
	c.delete("there")
}

// almostOver returns a client certificate of an hour that ends at the given time, and its key.
func (p *parts) almostOver(end time.Time) (certPEM, keyPEM []byte) {
	p.t.Helper()
	file := filepath.Join(p.dir, "old.key")
	key, err := pki.LoadOrCreateKey(file)
	if err != nil {
		p.t.Fatal(err)
	}
	der, err := p.ca.Sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:joined", Organization: []string{"system:nodes"}},
		NotBefore: end.Add(-time.Hour), NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public())
	if err != nil {
		p.t.Fatal(err)
	}
	if keyPEM, err = os.ReadFile(file); err != nil {
		p.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM
}

// writeKubeconfig writes a kubeconfig with which somebody reaches the API server.
func (p *parts) writeKubeconfig(dir, name string, who *clientcmdapi.AuthInfo) string {
	p.t.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:" + p.apiPort, CertificateAuthority: p.ca.CertFile}
	cfg.AuthInfos["u"] = who
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	path := filepath.Join(dir, name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), clientcmd.WriteToFile(*cfg, path)); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// joining starts a kubelet that only has a token.
func (p *parts) joining(dir, token string) {
	p.t.Helper()
	bootstrap := p.writeKubeconfig(dir, "bootstrap.conf", &clientcmdapi.AuthInfo{Token: token})
	p.startJoining(dir, "--bootstrap-kubeconfig", bootstrap, "--kubeconfig", filepath.Join(dir, "kubelet.conf"))
}

// startJoining starts a kubelet that rotates its certificates.
func (p *parts) startJoining(dir string, credentials ...string) {
	p.t.Helper()
	group := fmt.Sprintf("wherry-kj%x", os.Getpid()%0xfffff)
	if err := os.MkdirAll(filepath.Join(dir, "conf.d"), 0o700); err != nil {
		p.t.Fatal(err)
	}
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for name, text := range map[string]string{
		"kubelet.yaml": head + fmt.Sprintf("port: %d\nhealthzPort: 0\ncgroupRoot: /%s\npodLogsDir: %s\nauthentication:\n  x509: {clientCAFile: %s}\n",
			freePort(p.t), group, filepath.Join(dir, "logs"), p.ca.CertFile),
		"conf.d/10-certificates.conf": head + "rotateCertificates: true\nserverTLSBootstrap: true\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	p.t.Cleanup(func() {
		if err := errors.Join(cgroup.Kill("/"+group), cgroup.Remove("/"+group), mount.UnmountUnder(dir)); err != nil {
			p.t.Errorf("what the kubelet left: %v", err)
		}
	})
	p.start(slices.Concat([]string{"kubelet", "--config", filepath.Join(dir, "kubelet.yaml"), "--config-dir", filepath.Join(dir, "conf.d"),
		"--hostname-override", "joined", "--node-ip", "127.0.0.1", "--root-dir", dir, "--container-logs-dir", "",
		"--container-runtime-endpoint", p.endpoint, "--fail-swap-on=false"}, anyDisk, credentials)...)
}
