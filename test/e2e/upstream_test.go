package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/pki"
)

// upstreamOnly makes the upstream kubelet run on a machine with cgroup v1 where it may not lower
// OOM scores, leave the machine's iptables alone, and look at changed volumes before a test loses
// patience: it polls, while ours is notified.
const upstreamOnly = `failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
syncFrequency: 5s
`

func (p *parts) upstreamKubelet(path, group string, args []string) {
	p.t.Helper()
	if err := cgroup.Ensure("/"+group, nil); err != nil {
		p.t.Fatal(err)
	}
	// It needs its group in the hierarchy that systemd names, too.
	if named := "/sys/fs/cgroup/systemd"; fileExists(named) {
		if err := os.MkdirAll(filepath.Join(named, group), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	kubeletsFolder(p.t)
	p.startProgram(path, args...)
}

// kubeletsFolder removes the folder in which upstream's kubelet keeps the sockets of device plugins, whatever its flags say,
// unless this machine has it.
func kubeletsFolder(t testing.TB) {
	t.Helper()
	const fixed = "/var/lib/kubelet"
	if !fileExists(fixed) {
		t.Cleanup(func() {
			if err := os.RemoveAll(fixed); err != nil {
				t.Error(err)
			}
		})
	}
}

// upstreamAPIServer starts upstream's API server on Debian's etcd, with certificates like those
// that our own makes.
func (p *parts) upstreamAPIServer(path, pool string) {
	p.t.Helper()
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		p.t.Skipf("upstream's API server needs etcd: apt-get install etcd-server (%v)", err)
	}
	endpoint := func() string { return "http://127.0.0.1:" + strconv.Itoa(freePort(p.t)) }
	client, peer := endpoint(), endpoint()
	p.startProgram(etcd, "--data-dir", filepath.Join(p.dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	ca, err := pki.LoadOrCreateCA(pool, "ca", "kubernetes", time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	serving, servingKey, err := ca.Issue(pool, "apiserver", pki.Leaf{
		CommonName: "kube-apiserver", Server: true, DNSNames: []string{"kubernetes"}, IPs: []net.IP{net.ParseIP("127.0.0.1")},
	}, time.Now())
	toKubelets, toKubeletsKey, err2 := ca.Issue(pool, "apiserver-kubelet-client", pki.Leaf{
		CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}, Client: true,
	}, time.Now())
	proxies, err4 := pki.LoadOrCreateCA(pool, "front-proxy-ca", "front-proxy-ca", time.Now())
	signer := filepath.Join(pool, "sa.key")
	key, err3 := pki.LoadOrCreateKey(signer)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		p.t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		p.t.Fatal(err)
	}
	verifier := filepath.Join(pool, "sa.pub")
	if err := os.WriteFile(verifier, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.startProgram(path, "--etcd-servers", client, "--bind-address", "127.0.0.1", "--secure-port", p.apiPort,
		"--tls-cert-file", serving, "--tls-private-key-file", servingKey, "--client-ca-file", ca.CertFile,
		"--kubelet-preferred-address-types", "InternalIP", "--kubelet-certificate-authority", ca.CertFile, "--kubelet-client-certificate", toKubelets, "--kubelet-client-key", toKubeletsKey,
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", verifier, "--service-account-signing-key-file", signer,
		"--service-cluster-ip-range", p.flags[9], "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--disable-admission-plugins", "TaintNodesByCondition", // only the controller manager removes that taint
		"--requestheader-client-ca-file", proxies.CertFile, "--requestheader-allowed-names", "front-proxy-client",
		"--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--allow-privileged", "--endpoint-reconciler-type", "none")
}
