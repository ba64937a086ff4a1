package daemon

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/pki"
	"wherry.dev/internal/record"
)

// kubeconfigSpec says whom a kubeconfig is for.
type kubeconfigSpec struct {
	path   string
	server string // host:port
	name   string // of its certificate's files
	leaf   pki.Leaf
}

// writeKubeconfig writes a kubeconfig (mode 0600) with a certificate of its own,
// everything inside the one file, so that it can be copied elsewhere. It writes it again when the certificate is renewed.
func writeKubeconfig(ca *pki.CA, certDir string, s kubeconfigSpec, now time.Time) error {
	s.leaf.Client = true
	s.leaf.Renewed = func() error { return writeKubeconfig(ca, certDir, s, time.Now()) }
	certFile, keyFile, err := ca.Issue(certDir, s.name, s.leaf, now)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", s.leaf.CommonName, err)
	}
	var pem [3][]byte
	for i, f := range []string{ca.CertFile, certFile, keyFile} {
		if pem[i], err = os.ReadFile(f); err != nil {
			return err
		}
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["wherry"] = &clientcmdapi.Cluster{Server: "https://" + s.server, CertificateAuthorityData: pem[0]}
	cfg.AuthInfos[s.leaf.CommonName] = &clientcmdapi.AuthInfo{ClientCertificateData: pem[1], ClientKeyData: pem[2]}
	cfg.Contexts["wherry"] = &clientcmdapi.Context{Cluster: "wherry", AuthInfo: s.leaf.CommonName}
	cfg.CurrentContext = "wherry"
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	return record.WriteFile(s.path, data, 0o600)
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// writeAdminKubeconfig writes the administrator's kubeconfig (group system:masters).
func (d *Daemon) writeAdminKubeconfig() error {
	if err := d.tellNewCA(); err != nil {
		return err
	}
	if err := d.api.CA().Valid(time.Now()); err != nil {
		d.progress("nobody can use the cluster yet: " + err.Error())
	}
	return writeKubeconfig(d.api.CA(), filepath.Join(d.cfg.DataDir, "pki"), kubeconfigSpec{
		path: d.cfg.Kubeconfig(), server: hostPort("127.0.0.1", d.cfg.SecurePort), name: "admin",
		leaf: pki.Leaf{CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}},
	}, time.Now())
}

// tellNewCA reports it when the kubeconfig that was handed out belongs to another CA: its copies,
// nodes and tokens elsewhere are no longer trusted.
func (d *Daemon) tellNewCA() error {
	old, err := clientcmd.LoadFromFile(d.cfg.Kubeconfig())
	if err != nil || old.Clusters["wherry"] == nil {
		return nil //nolint:nilerr // there was none, or none that worked: it is written again
	}
	ca, err := d.api.CA().Cert()
	if err != nil || bytes.Equal(ca, old.Clusters["wherry"].CertificateAuthorityData) || !d.api.CA().New() {
		return err
	}
	d.progress("the cluster's certificate authority was missing, and a new one was created: earlier kubeconfigs, nodes and tokens " +
		"are refused; " + d.cfg.Kubeconfig() + " is rewritten")
	return nil
}

// servingNames returns the names and addresses of the node's servers.
func (d *Daemon) servingNames() (names []string, ips []net.IP) {
	names = []string{d.cfg.NodeName, "localhost"}
	ips = []net.IP{net.IPv4(127, 0, 0, 1).To4()}
	for _, ip := range d.cfg.NodeIPs() {
		if !ip.IsLoopback() {
			ips = append(ips, ip.AsSlice())
		}
	}
	return names, ips
}
