package certificates

import (
	"net"
	"time"

	"wherry.dev/internal/pki"
)

// SelfSigned returns the files of a serving certificate below dir, and the authority, which we are ourselves: it is kept there,
// too.
func SelfSigned(dir, node string, ips []string) (ca *pki.CA, certFile, keyFile string, err error) {
	now := time.Now()
	if ca, err = pki.LoadOrCreateCA(dir, "kubelet-ca", node+"-ca", now); err != nil {
		return nil, "", "", err
	}
	leaf := pki.Leaf{CommonName: node, DNSNames: []string{node}, Server: true}
	for _, ip := range ips {
		leaf.IPs = append(leaf.IPs, net.ParseIP(ip))
	}
	certFile, keyFile, err = ca.Issue(dir, "kubelet", leaf, now)
	return ca, certFile, keyFile, err
}
