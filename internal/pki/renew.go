package pki

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// lookEvery is how often certificates are compared with the clock, which can be set to any other time.
const lookEvery = time.Minute

// issued is a certificate that the CA has issued in this process, or found in its files.
type issued struct {
	leaf Leaf
	key  crypto.Signer
	cert *x509.Certificate
}

func (ca *CA) remember(file string, i issued) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if ca.issued == nil {
		ca.issued = map[string]issued{}
	}
	ca.issued[file] = i
}

// Keep renews what the CA has issued, whenever it is due, until ctx ends.
func (ca *CA) Keep(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := ca.Renew(ctx, time.Now()); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot renew certificates", "authority", ca.CertFile)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Renew reissues those certificates that Issue has returned and that are about to expire, or are not valid yet.
// An error is tried again with the next call.
func (ca *CA) Renew(ctx context.Context, now time.Time) error {
	ca.mu.Lock()
	due := map[string]issued{}
	for file, i := range ca.issued {
		if !ca.fits(i.cert, i.key, i.leaf, now) {
			due[file] = i
		}
	}
	ca.mu.Unlock()
	var errs []error
	if now.Before(ca.cert.NotBefore) || now.After(ca.cert.NotAfter) {
		errs = append(errs, fmt.Errorf("the clock says %s, and the certificate authority is valid from %s to %s: set the clock",
			now.UTC().Format(time.RFC3339), ca.cert.NotBefore.Format(time.RFC3339), ca.cert.NotAfter.Format(time.RFC3339)))
	}
	for file, i := range due {
		var err error
		if i.cert, err = ca.issue(file, i.key, i.leaf, now); err != nil {
			errs = append(errs, err)
			continue
		}
		if i.leaf.Renewed != nil {
			if err := i.leaf.Renewed(); err != nil {
				errs = append(errs, fmt.Errorf("%s was renewed: %w", file, err))
				continue
			}
		}
		ca.remember(file, i)
		klog.FromContext(ctx).Info("Renewed a certificate", "file", file, "until", i.cert.NotAfter)
	}
	return errors.Join(errs...)
}
