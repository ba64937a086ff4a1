package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOpenCA(t *testing.T) {
	dir := t.TempDir()
	own, err := LoadOrCreateCA(dir, "ca", "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := OpenCA(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Sign(template("somebody", nil, time.Now(), time.Hour), own.key.Public()); err != nil {
		t.Error(err)
	}
	leaf, key, err := own.Issue(dir, "leaf", Leaf{CommonName: "leaf", Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, files := range map[string][2]string{
		"no authority": {leaf, key}, "another key": {own.CertFile, key}, "junk": {junk, own.KeyFile}, "nothing": {filepath.Join(dir, "none"), own.KeyFile},
	} {
		if _, err := OpenCA(files[0], files[1]); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
}

// Keys that others made, such as kubeadm and openssl, are RSA, and in older forms.
func TestKeysOfOthers(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(ecKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for kind, tt := range map[string]struct {
		der  []byte
		want crypto.PublicKey
	}{
		"PRIVATE KEY":     {pkcs8, rsaKey.Public()},
		"RSA PRIVATE KEY": {x509.MarshalPKCS1PrivateKey(rsaKey), rsaKey.Public()},
		"EC PRIVATE KEY":  {sec1, ecKey.Public()},
	} {
		path := filepath.Join(dir, "key")
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: tt.der}), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := LoadOrCreateKey(path)
		if err != nil || !key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(tt.want) {
			t.Errorf("%s: %v, %v", kind, key, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := LoadOrCreateKey(filepath.Join(dir, "key")); err == nil || !strings.Contains(err.Error(), "restore it") {
		t.Errorf("junk: %v, %v", key, err)
	}
	// An authority with such a key is kept, and signs.
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ca, err := LoadOrCreateCA(dir, "ca", "test", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ca.Issue(dir, "leaf", Leaf{CommonName: "leaf", Client: true}, time.Now()); err != nil {
			t.Error(err)
		}
	}
}
