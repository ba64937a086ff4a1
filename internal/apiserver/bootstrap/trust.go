package bootstrap

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/retry"
)

// TrustMap is the config map from which other servers of the cluster (the scheduler's metrics,
// metrics-server) learn whose certificates and which proxies' headers to trust.
const TrustMap = "extension-apiserver-authentication"

// Keys of the config map. Those that begin with requestheader- and hold no certificate are lists in
// JSON.
const (
	trustClientCA = "client-ca-file"
	trustProxyCA  = "requestheader-client-ca-file"
)

// trustLists returns the lists of the config map as this server has them.
func (o *Objects) trustLists() map[string][]string {
	r := o.cfg.RequestHeader
	lists := map[string][]string{
		"requestheader-username-headers":     r.UsernameHeaders.Value(),
		"requestheader-group-headers":        r.GroupHeaders.Value(),
		"requestheader-extra-headers-prefix": r.ExtraHeaderPrefixes.Value(),
		"requestheader-allowed-names":        r.AllowedClientNames.Value(),
	}
	if uid := r.UIDHeaders.Value(); len(uid) > 0 {
		lists["requestheader-uid-headers"] = uid
	}
	return lists
}

// trustData returns what the config map should hold: what other API servers of the cluster have
// written, and what we trust, without expired certificates.
func (o *Objects) trustData(have map[string]string, now time.Time) (map[string]string, error) {
	data := map[string]string{}
	own := map[string][]byte{
		trustClientCA: o.cfg.ClientCA.CurrentCABundleContent(),
		trustProxyCA:  o.cfg.RequestHeader.CAContentProvider.CurrentCABundleContent(),
	}
	for key, bundle := range own {
		merged, err := mergeCertificates([]byte(have[key]), bundle, now)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		data[key] = string(merged)
	}
	for key, values := range o.trustLists() {
		merged, err := mergeList(have[key], values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		data[key] = merged
	}
	return data, nil
}

// mergeList adds own to a list in JSON. A list that cannot be parsed is replaced.
func mergeList(have string, own []string) (string, error) {
	var merged []string
	if json.Unmarshal([]byte(have), &merged) != nil {
		merged = nil
	}
	for _, v := range own {
		if !slices.Contains(merged, v) {
			merged = append(merged, v)
		}
	}
	if merged == nil {
		merged = []string{} // so that it is written as [], which means "any", and not as null
	}
	text, err := json.Marshal(merged)
	return string(text), err
}

// mergeCertificates adds own to a bundle in PEM. A bundle that cannot be parsed is replaced.
func mergeCertificates(have, own []byte, now time.Time) ([]byte, error) {
	ours, err := cert.ParseCertsPEM(own)
	if err != nil {
		return nil, err
	}
	merged, err := cert.ParseCertsPEM(have)
	if err != nil {
		merged = nil
	}
	for _, c := range ours {
		if !slices.ContainsFunc(merged, c.Equal) {
			merged = append(merged, c)
		}
	}
	var text []byte
	for _, c := range merged {
		if now.Before(c.NotAfter) {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw})...)
		}
	}
	return text, nil
}

// publishTrust writes the config map if it does not hold what it should.
func (o *Objects) publishTrust(ctx context.Context) error {
	api := o.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := api.Get(ctx, TrustMap, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if missing {
			have, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: TrustMap, Namespace: metav1.NamespaceSystem}}, nil
		}
		if err != nil {
			return err
		}
		want, err := o.trustData(have.Data, time.Now())
		if err != nil || maps.Equal(have.Data, want) {
			return err
		}
		have.Data = want
		if !missing {
			_, err = api.Update(ctx, have, metav1.UpdateOptions{})
			return err
		}
		if _, err = api.Create(ctx, have, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			// Another API server of the cluster has created it: retry with what that one has
			// written.
			return apierrors.NewConflict(corev1.Resource("configmaps"), TrustMap, err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("config map %s/%s: %w", metav1.NamespaceSystem, TrustMap, err)
	}
	return nil
}

// keepTrust writes the config map again whenever somebody changes or deletes it, or what we trust has changed, until ctx ends.
func (o *Objects) keepTrust(ctx context.Context) error {
	k := ownObject{
		resource: "configmaps", namespace: metav1.NamespaceSystem, name: TrustMap, changes: true,
		sources: []dynamiccertificates.CAContentProvider{o.cfg.ClientCA, o.cfg.RequestHeader.CAContentProvider},
	}
	return keep[*corev1.ConfigMap](ctx, o.cfg.Store(k.group, k.resource), k, o.publishTrust)
}
