package pki

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/clockset"
)

// lookEvery is how often certificates are compared with the clock, beside whenever it is set.
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

// Keep renews what authorities have issued, whenever it is due, until ctx ends.
func Keep(ctx context.Context, authorities ...*CA) {
	log := klog.FromContext(ctx)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	set := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		err := clockset.Watch(ctx, func() {
			select {
			case set <- struct{}{}:
			default:
			}
		})
		if err != nil {
			log.Error(err, "Nothing tells when the clock is set; certificates that are due then are renewed within a minute")
		}
	})
	for {
		for _, ca := range authorities {
			if err := ca.Renew(ctx, time.Now()); err != nil {
				log.Error(err, "Cannot renew certificates", "authority", ca.CertFile)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-set:
		}
	}
}

// Valid returns an error if the authority's certificate is not valid by the clock, so that nobody trusts what it has issued.
func (ca *CA) Valid(now time.Time) error {
	if !now.Before(ca.cert.NotBefore) && !now.After(ca.cert.NotAfter) {
		return nil
	}
	return fmt.Errorf("the clock says %s, and the certificate authority %s is valid from %s to %s: set the clock",
		now.UTC().Format(time.RFC3339), ca.CertFile, ca.cert.NotBefore.Format(time.RFC3339), ca.cert.NotAfter.Format(time.RFC3339))
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
	if err := ca.Valid(now); err != nil {
		errs = append(errs, err)
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
