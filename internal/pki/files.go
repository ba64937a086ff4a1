package pki

import (
	"crypto/tls"
	"os"
	"sync"
)

// Files is a certificate in files that somebody may renew.
type Files struct {
	certFile, keyFile string

	mu   sync.Mutex
	info os.FileInfo // of the file with cert
	cert *tls.Certificate
}

// OpenFiles reads a certificate and its key.
func OpenFiles(certFile, keyFile string) (*Files, error) {
	f := &Files{certFile: certFile, keyFile: keyFile}
	if _, err := f.Current(); err != nil {
		return nil, err
	}
	return f, nil
}

// Current returns the certificate as the files have it now. In the middle of a renewal, it is the
// one before.
func (f *Files) Current() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.certFile)
	if err == nil && f.cert != nil && os.SameFile(info, f.info) && info.ModTime().Equal(f.info.ModTime()) {
		return f.cert, nil
	}
	var cert tls.Certificate
	if err == nil {
		cert, err = tls.LoadX509KeyPair(f.certFile, f.keyFile)
	}
	switch {
	case err == nil:
		f.cert, f.info = &cert, info
		return f.cert, nil
	case f.cert != nil:
		return f.cert, nil
	}
	return nil, err
}
