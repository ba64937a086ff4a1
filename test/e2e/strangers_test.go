package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	nodes "wherry.dev/test/cluster"
	"wherry.dev/test/runtimes"
)

// kubeadm is what it needs to be told for a control plane of upstream's on a machine.
const kubeadm = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %[1]s, bindPort: %[2]d}
nodeRegistration: {name: m1, criSocket: unix:///none}
bootstrapTokens: [{token: %[4]s, ttl: 1h, usages: [signing, authentication], groups: [system:bootstrappers:kubeadm:default-node-token]}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.0
certificatesDir: %[3]s
networking: {podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/16}
controlPlaneEndpoint: %[1]s:%[2]d
`

const bootstrapToken = "abcdef.0123456789abcdef"

// others are upstream's programs, by the variable that has the path of each.
func others(t *testing.T, names ...string) map[string]string {
	t.Helper()
	paths := map[string]string{}
	for _, name := range names {
		if paths[name] = os.Getenv(name); paths[name] == "" {
			t.Skipf("set %s to the paths of upstream's programs", strings.Join(names, ", "))
		}
	}
	return paths
}

// program runs a program on a machine until the test ends, before what was there before it.
func (s *several) program(m *nodes.Machine, path string, args ...string) {
	s.t.Helper()
	log, err := os.CreateTemp(filepath.Dir(m.Data), "*.log")
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := m.Command(s.t.Context(), path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		err := cmd.Wait()
		if text, _ := os.ReadFile(log.Name()); s.t.Failed() {
			s.t.Logf("%s (%v):\n%s", filepath.Base(path), err, text[max(0, len(text)-3000):])
		}
		_ = log.Close()
	})
}

// upstream starts upstream's control plane on a machine as kubeadm does, and makes a token for nodes. It returns the path of an
// administrator's kubeconfig.
func (s *several) upstream(m *nodes.Machine, paths map[string]string) string {
	s.t.Helper()
	dir := filepath.Join(filepath.Dir(m.Data), "upstream")
	pki := filepath.Join(dir, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		s.t.Fatal(err)
	}
	config := filepath.Join(dir, "kubeadm.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeadm, m.Address, nodes.ServerPort, pki, bootstrapToken), 0o600); err != nil {
		s.t.Fatal(err)
	}
	phase := func(args ...string) {
		s.t.Helper()
		args = append([]string{"init", "phase"}, args...)
		if out, err := m.Command(s.t.Context(), paths["KUBEADM"], append(args, "--config", config)...).CombinedOutput(); err != nil {
			s.t.Fatalf("kubeadm %v: %v: %s", args, err, out)
		}
	}
	phase("certs", "all")
	for _, who := range []string{"admin", "super-admin", "controller-manager", "scheduler"} {
		phase("kubeconfig", who, "--kubeconfig-dir", dir)
	}
	file := func(name string) string { return filepath.Join(pki, name) }
	kubeconfig := func(who string) string { return filepath.Join(dir, who+".conf") }
	s.program(m, paths["ETCD"], "--data-dir", filepath.Join(dir, "etcd"))
	s.program(m, paths["APISERVER"], "--etcd-servers=http://127.0.0.1:2379", "--advertise-address="+m.Address, fmt.Sprintf("--secure-port=%d", nodes.ServerPort),
		"--client-ca-file="+file("ca.crt"), "--tls-cert-file="+file("apiserver.crt"), "--tls-private-key-file="+file("apiserver.key"),
		"--kubelet-client-certificate="+file("apiserver-kubelet-client.crt"), "--kubelet-client-key="+file("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority="+file("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file="+file("sa.pub"), "--service-account-signing-key-file="+file("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true",
		"--proxy-client-cert-file="+file("front-proxy-client.crt"), "--proxy-client-key-file="+file("front-proxy-client.key"),
		"--requestheader-client-ca-file="+file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-")
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig("super-admin"))
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.Dial, cfg.QPS = m.Dial, -1
	if s.client, err = kubernetes.NewForConfig(cfg); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("upstream's API server is ready", func() error {
		return s.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(s.t.Context()).Error()
	})
	s.program(m, paths["CONTROLLER_MANAGER"], "--kubeconfig="+kubeconfig("controller-manager"), "--authentication-kubeconfig="+kubeconfig("controller-manager"),
		"--authorization-kubeconfig="+kubeconfig("controller-manager"), "--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16", "--service-cluster-ip-range=10.96.0.0/16",
		"--cluster-signing-cert-file="+file("ca.crt"), "--cluster-signing-key-file="+file("ca.key"), "--root-ca-file="+file("ca.crt"),
		"--service-account-private-key-file="+file("sa.key"), "--use-service-account-credentials=true", "--controllers=*,bootstrapsigner,tokencleaner", "--leader-elect=false")
	s.program(m, paths["SCHEDULER"], "--kubeconfig="+kubeconfig("scheduler"), "--leader-elect=false")
	phase("bootstrap-token", "--kubeconfig", kubeconfig("super-admin"))
	s.eventually("upstream's cluster-info is signed", func() error {
		info, err := s.client.CoreV1().ConfigMaps("kube-public").Get(s.t.Context(), "cluster-info", metav1.GetOptions{})
		if err == nil && info.Data["jws-kubeconfig-abcdef"] == "" {
			err = errors.New("it is not")
		}
		return err
	})
	ca, err := os.ReadFile(file("ca.crt"))
	if err != nil {
		s.t.Fatal(err)
	}
	block, _ := pem.Decode(ca)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		s.t.Fatal(err)
	}
	hash := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	s.token = bootstrapToken + "." + hex.EncodeToString(hash[:])
	return kubeconfig("super-admin")
}

// as builds a node's program that calls itself as old as the cluster is: nodes may not be ahead of their server.
func (s *several) as(version string) string {
	s.t.Helper()
	path := filepath.Join(filepath.Dir(filepath.Dir(s.data)), "wherry")
	compile(s.t, ".", "-ldflags=-s -w -X k8s.io/component-base/version.gitVersion="+version+"+wherry", "-o", path, "wherry.dev/cmd/wherry")
	return path
}

// nodeRoles returns the objects that docs/nodes.md tells administrators of such clusters to make.
func nodeRoles(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(doc), "    apiVersion: rbac.authorization.k8s.io/v1\n")
	if !found {
		t.Fatal("docs/nodes.md has no cluster role any more")
	}
	roles := "apiVersion: rbac.authorization.k8s.io/v1\n"
	for line := range strings.Lines(text) {
		line, indented := strings.CutPrefix(line, "    ")
		if !indented {
			break
		}
		roles += line
	}
	return roles
}

// Our node joins servers made by kubeadm, gets its range from them, runs pods that their scheduler places, serves exec through
// their API server, and leaves.
func TestANodeOfUpstreamsCluster(t *testing.T) {
	paths := others(t, "KUBEADM", "APISERVER", "CONTROLLER_MANAGER", "SCHEDULER", "ETCD")
	s := newSeveral(t, 3, 0)
	ctx, server := t.Context(), s.net.Machines[0]
	admin := s.upstream(server, paths)
	kubectl := func(in string, args ...string) (string, error) {
		cmd := server.Command(ctx, s.wherry, append([]string{"kubectl", "--kubeconfig", admin}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
		return string(out), err
	}
	joined := s.net.Machines[1:]
	version, err := s.client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	old := s.as(version.GitVersion)
	flags := []string{"--cluster-cidr", "10.244.0.0/16"}
	for _, m := range joined {
		m.Use(old)
		if err := s.join(m, flags...); err == nil || !strings.Contains(err.Error(), "the cluster role of docs/nodes.md") {
			t.Fatalf("%s joins without the right to read what its network needs: %v", m.Name, err)
		}
	}
	if _, err := kubectl(nodeRoles(t), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, m := range joined {
		if err := s.join(m, flags...); err != nil {
			t.Fatal(err)
		}
		s.approveServing(m)
	}
	for _, m := range joined {
		s.create(placed(m))
	}
	svc := s.telling("tellers", func(*v1.ServiceSpec) {})
	for _, m := range joined {
		p := s.await("on-"+m.Name, "ready", ready)
		s.inItsRange(p, m)
		s.eventually("the service's pods answer on "+m.Name, func() error {
			out, err := kubectl("", "exec", p.Name, "--", "sh", "-c",
				fmt.Sprintf(`for i in 1 2 3 4 5 6 7 8 9 10; do printf 'GET /cgi-bin/who HTTP/1.0\r\n\r\n' | nc -w 5 %s 80 | tail -n 1; done`, svc.Spec.ClusterIP))
			for _, other := range joined {
				if err == nil && !strings.Contains(out, "on-"+other.Name) {
					err = fmt.Errorf("on-%s has not answered: %s", other.Name, out)
				}
			}
			return err
		})
	}
	for _, m := range joined {
		if _, err := s.on(m, "down", "--drain", "--leave", "--purge"); err != nil {
			t.Error(err)
		}
		if n, err := s.client.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s has left, and is there: %v, %v", m.Name, n, err)
		}
	}
}

// placed is a teller that a scheduler has to take to its machine.
func placed(m *nodes.Machine) *v1.Pod {
	p := teller(m)
	p.Spec.NodeName, p.Spec.NodeSelector = "", map[string]string{v1.LabelHostname: m.Name}
	return p
}

// inItsRange checks that a pod has an address of its node's range.
func (s *several) inItsRange(p *v1.Pod, m *nodes.Machine) {
	s.t.Helper()
	n, err := s.client.CoreV1().Nodes().Get(s.t.Context(), m.Name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if r, err := netip.ParsePrefix(n.Spec.PodCIDR); err != nil || !r.Contains(netip.MustParseAddr(p.Status.PodIP)) {
		s.t.Errorf("%s has the address %s, and the range of its node is %q (%v)", p.Name, p.Status.PodIP, n.Spec.PodCIDR, err)
	}
}

// approveServing approves the serving certificate of a node, as an administrator of upstream's cluster does.
func (s *several) approveServing(m *nodes.Machine) {
	s.t.Helper()
	ctx, requests := s.t.Context(), s.client.CertificatesV1().CertificateSigningRequests()
	s.eventually("the serving certificate of "+m.Name, func() error {
		all, err := requests.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, r := range all.Items {
			if r.Spec.SignerName != certificatesv1.KubeletServingSignerName || r.Spec.Username != "system:node:"+m.Name {
				continue
			}
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue, Reason: "Test",
			})
			_, err := requests.UpdateApproval(ctx, r.Name, &r, metav1.UpdateOptions{})
			return err
		}
		return errors.New("it has not been asked for")
	})
}

// Upstream's kubelet joins our server by a bootstrap kubeconfig, as kubeadm writes it: it gets both its certificates without
// anybody's help, its range and its pods.
func TestUpstreamsKubeletJoins(t *testing.T) {
	kubelet := others(t, "KUBELET")["KUBELET"]
	s := newSeveral(t, 2, 0)
	ctx, server, m := t.Context(), s.net.Machines[0], s.net.Machines[1]
	s.serve()
	dir := filepath.Join(filepath.Dir(m.Data), "kubelet")
	if err := os.MkdirAll(filepath.Join(dir, "manifests"), 0o711); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(server.Data, "pki", "ca.crt")
	id, secret, _ := strings.Cut(s.token, ".")
	secret, _, _ = strings.Cut(secret, ".")
	bootstrap := clientcmdapi.NewConfig()
	bootstrap.Clusters["c"] = &clientcmdapi.Cluster{Server: server.Server(), CertificateAuthority: ca}
	bootstrap.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: id + "." + secret}
	bootstrap.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	bootstrap.CurrentContext = "x"
	archive := filepath.Join(m.Data, "images", "busybox.tar")
	runtime, err := runtimes.Wherry(ctx, runtimes.WherryOptions{Path: s.wherry, Archives: []string{archive}, Range: "kubelet", NetNS: m.NetNS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runtime.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	group := fmt.Sprintf("wherry-kl%x", os.Getpid()%0xfffff)
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
serverTLSBootstrap: true
rotateCertificates: true
cgroupsPerQOS: false
cgroupRoot: /%s
podLogsDir: %s
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: %s
authentication: {x509: {clientCAFile: %s}, anonymous: {enabled: false}}
authorization: {mode: Webhook}
evictionHard: {}
imageGCHighThresholdPercent: 100
`, group, filepath.Join(dir, "logs"), runtime.Endpoint, ca) + upstreamOnly
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(clientcmd.WriteToFile(*bootstrap, file("bootstrap.conf")), os.WriteFile(file("config.yaml"), []byte(config), 0o600), cgroup.Ensure("/"+group, nil)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cgroup.Kill("/"+group), cgroup.Remove("/"+group), mount.UnmountUnder(dir)); err != nil {
			t.Errorf("what the kubelet left: %v", err)
		}
	})
	kubeletsFolder(t)
	s.program(m, kubelet, "--bootstrap-kubeconfig", file("bootstrap.conf"), "--kubeconfig", file("kubelet.conf"), "--cert-dir", file("pki"),
		"--root-dir", file("root"), "--config", file("config.yaml"), "--hostname-override", m.Name, "--node-ip", m.Address)
	p := s.create(placed(m))
	p = s.await(p.Name, "ready", ready)
	s.inItsRange(p, m)
	s.eventually("exec through our server", func() error {
		out, err := s.kubectl("exec", p.Name, "--", "echo", "hello")
		if err == nil && strings.TrimSpace(out) != "hello" {
			err = errors.New(out)
		}
		return err
	})
	s.delete(p.Name)
	s.await(p.Name, "gone", gone)
}
