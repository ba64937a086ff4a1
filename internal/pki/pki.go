// Package pki creates and keeps the certificates of an instance: ECDSA P-256 keys in PEM files of
// mode 0600, created once, and certificates that are reissued before they expire.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/keyutil"

	"wherry.dev/internal/record"
)

const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 365 * 24 * time.Hour
	// renewBefore is how long before its end a leaf is reissued.
	renewBefore = 60 * 24 * time.Hour
	// backdate allows for clients whose clocks are behind, and for a machine that began with its clock ahead, by its
	// time zone say, until it heard of the right time.
	backdate = 24 * time.Hour
)

// earliest is before every Wherry: a clock that says less has lost the time, and an authority that is made by it would have
// expired once it is right.
var earliest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// CA is a certificate authority whose certificate and key are in one folder.
type CA struct {
	CertFile string
	KeyFile  string
	cert     *x509.Certificate
	key      crypto.Signer
	made     bool

	mu     sync.Mutex
	issued map[string]issued // by file
}

// Leaf describes a certificate to issue.
type Leaf struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
	Server        bool
	Client        bool
	// Renewed is called when Renew has reissued the certificate; nil if its files are read again anyway.
	Renewed func() error
}

// LoadOrCreateCA returns the CA kept as dir/name.crt and dir/name.key, and creates it if there is
// none. It returns an error if only the key is missing.
func LoadOrCreateCA(dir, name, commonName string, now time.Time) (*CA, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ca := &CA{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	cert, err := readCert(ca.CertFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, kerr := os.Lstat(ca.KeyFile); errors.Is(kerr, fs.ErrNotExist) && cert != nil {
		return nil, fmt.Errorf("the key of the certificate authority %s is missing: restore %s from a backup", ca.CertFile, ca.KeyFile)
	}
	if ca.key, err = LoadOrCreateKey(ca.KeyFile); err != nil {
		return nil, err
	}
	if ca.cert = cert; cert == nil { // if only the certificate was lost, the same key keeps what it signed valid
		ca.made = true
		ca.cert, err = ca.selfSign(commonName, now)
		return ca, err
	}
	if !samePublic(cert, ca.key) {
		return nil, fmt.Errorf("%s is not the key of the certificate authority %s: restore both from the same backup", ca.KeyFile, ca.CertFile)
	}
	return ca, nil
}

// RefuseClock returns an error if there is no CA yet, and one that is made now would be made by a clock that has lost the time.
func RefuseClock(dir, name string, now time.Time) error {
	file := filepath.Join(dir, name+".crt")
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) || !now.Before(earliest) {
		return nil // whoever loads it says what is wrong with it
	}
	return fmt.Errorf("the clock says %s: set it before the certificate authority %s is made", now.UTC().Format(time.RFC3339), file)
}

// RefuseLost returns an error if certificates signed by a CA are there but the CA itself is not.
// Those who were given certificates of the lost CA would not trust another in its place.
func RefuseLost(dir, name, commonName string) error {
	for _, ext := range []string{".crt", ".key"} {
		if _, err := os.Lstat(filepath.Join(dir, name+ext)); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	certs, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		return err
	}
	for _, path := range certs {
		cert, err := readCert(path)
		if err != nil || cert.Issuer.CommonName != commonName || cert.IsCA {
			continue
		}
		return fmt.Errorf("the certificate authority that signed %s is missing: restore %s.crt and .key from a backup; or, "+
			"if kubeconfigs and nodes with certificates from it may lose access, remove %s and start again",
			path, filepath.Join(dir, name), dir)
	}
	return nil
}

func (ca *CA) selfSign(commonName string, now time.Time) (*x509.Certificate, error) {
	tmpl := template(commonName, nil, now, caValidity)
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	return sign(ca.CertFile, tmpl, tmpl, ca.key.Public(), ca.key)
}

// New reports whether the CA's certificate was not there before.
func (ca *CA) New() bool { return ca.made }

// Cert returns the CA's certificate in PEM.
func (ca *CA) Cert() ([]byte, error) { return os.ReadFile(ca.CertFile) }

// Issue returns dir/name.crt and dir/name.key. It creates them if they are missing, and reissues
// the certificate if it was signed by another CA, is about to expire, or no longer fits the leaf.
func (ca *CA) Issue(dir, name string, leaf Leaf, now time.Time) (certFile, keyFile string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	key, err := LoadOrCreateKey(keyFile)
	if err != nil {
		return "", "", err
	}
	cert, err := readCert(certFile)
	if err != nil || !ca.fits(cert, key, leaf, now) {
		if cert, err = ca.issue(certFile, key, leaf, now); err != nil {
			return "", "", err
		}
	}
	ca.remember(certFile, issued{leaf, key, cert})
	return certFile, keyFile, nil
}

func (ca *CA) issue(file string, key crypto.Signer, leaf Leaf, now time.Time) (*x509.Certificate, error) {
	tmpl := template(leaf.CommonName, leaf.Organizations, now, leafValidity)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.DNSNames, tmpl.IPAddresses = leaf.DNSNames, leaf.IPs
	if leaf.Server {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if leaf.Client {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	return sign(file, tmpl, ca.cert, key.Public(), ca.key)
}

func (ca *CA) fits(cert *x509.Certificate, key crypto.Signer, leaf Leaf, now time.Time) bool {
	return samePublic(cert, key) &&
		cert.CheckSignatureFrom(ca.cert) == nil &&
		now.Before(cert.NotAfter.Add(-renewBefore)) &&
		(now.After(cert.NotBefore) || now.Before(ca.cert.NotBefore)) && // nothing helps before the CA itself is valid
		cert.Subject.CommonName == leaf.CommonName &&
		slices.Equal(cert.Subject.Organization, leaf.Organizations) &&
		slices.Equal(cert.DNSNames, leaf.DNSNames) &&
		slices.EqualFunc(cert.IPAddresses, leaf.IPs, net.IP.Equal)
}

// Sign signs a certificate for another party's key, and returns it in DER. The certificate does not
// outlive the CA's own.
func (ca *CA) Sign(tmpl *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	if tmpl.NotAfter.After(ca.cert.NotAfter) {
		tmpl.NotAfter = ca.cert.NotAfter
	}
	return x509.CreateCertificate(rand.Reader, tmpl, ca.cert, public, ca.key)
}

// LoadOrCreateKey returns the private key at path, in PEM: RSA or ECDSA, in PKCS #1, SEC 1 or PKCS #8. If
// there is none, it makes one for ECDSA (PKCS #8, mode 0600).
func LoadOrCreateKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createKey(path)
	}
	if err != nil {
		return nil, err
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("private key %s: %w; restore it, or remove it to have a new one created", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key %s: %T does not sign", path, key)
	}
	return signer, nil
}

// samePublic reports whether a certificate is that of a key.
func samePublic(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}

func createKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, record.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func readCert(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("certificate %s: no PEM block; remove it to have a new one created", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

func template(cn string, orgs []string, now time.Time, validity time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: cn, Organization: orgs},
		NotBefore: now.Add(-backdate),
		NotAfter:  now.Add(validity),
	}
}

func sign(path string, tmpl, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	tmpl.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, signer)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", path, err)
	}
	if err := record.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
