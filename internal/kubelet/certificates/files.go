package certificates

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"wherry.dev/internal/pki"
)

// SelfSigned returns the files of a serving certificate that we issue ourselves, below dir.
func SelfSigned(dir, node string, ips []string) (certFile, keyFile string, err error) {
	now := time.Now()
	ca, err := pki.LoadOrCreateCA(dir, "kubelet-ca", node+"-ca", now)
	if err != nil {
		return "", "", err
	}
	leaf := pki.Leaf{CommonName: node, DNSNames: []string{node}, Server: true}
	for _, ip := range ips {
		leaf.IPs = append(leaf.IPs, net.ParseIP(ip))
	}
	return ca.Issue(dir, "kubelet", leaf, now)
}

// Files is a certificate in files that somebody may renew.
type Files struct {
	certFile, keyFile string

	mu   sync.Mutex
	at   time.Time
	cert *tls.Certificate
}

// OpenFiles reads a certificate and its key.
func OpenFiles(certFile, keyFile string) (*Files, error) {
	f := &Files{certFile: certFile, keyFile: keyFile}
	if _, err := f.Current(); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return f, nil
}

// Current returns the certificate as the files have it now. In the middle of a renewal, it is the
// one before.
func (f *Files) Current() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.certFile)
	if err == nil && f.cert != nil && info.ModTime().Equal(f.at) {
		return f.cert, nil
	}
	var cert tls.Certificate
	if err == nil {
		cert, err = tls.LoadX509KeyPair(f.certFile, f.keyFile)
	}
	switch {
	case err == nil:
		f.cert, f.at = &cert, info.ModTime()
		return f.cert, nil
	case f.cert != nil:
		return f.cert, nil
	}
	return nil, err
}
