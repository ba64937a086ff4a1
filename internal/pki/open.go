package pki

import (
	"crypto"
	"crypto/tls"
	"fmt"
)

// OpenCA returns the CA whose certificate and key somebody else made, in PEM, with a key of any sort.
func OpenCA(certFile, keyFile string) (*CA, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s with key %s: %w", certFile, keyFile, err)
	}
	if !pair.Leaf.IsCA && pair.Leaf.Version >= 3 { // an older certificate cannot say it
		return nil, fmt.Errorf("%s is not the certificate of a certificate authority", certFile)
	}
	return &CA{CertFile: certFile, KeyFile: keyFile, cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer)}, nil
}
