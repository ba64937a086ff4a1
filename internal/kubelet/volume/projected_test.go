package volume

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// oneCertificate is what all pods get until they are forgotten.
type oneCertificate struct{ forgotten types.UID }

func (*oneCertificate) Bundle(context.Context, *v1.Pod, string, int, *v1.PodCertificateProjection) (key, chain []byte, refreshAt time.Time, err error) {
	return []byte("key\n"), []byte("chain\n"), time.Unix(2000, 0), nil
}

func (c *oneCertificate) Forget(uid types.UID) { c.forgotten = uid }

func TestPodCertificateVolume(t *testing.T) {
	m := newMounter(t, objs{})
	src := &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519", CredentialBundlePath: "bundle.pem", KeyPath: "key.pem", CertificateChainPath: "d/chain.pem"}
	pod := podWith(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{PodCertificate: src}}}})
	if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), "not supported by this node") {
		t.Errorf("without a source: %v", err)
	}
	certs := &oneCertificate{}
	m.Certificates = certs
	at, err := m.Mount(t.Context(), pod, "v")
	if err != nil || at.Unix() != 2000 {
		t.Fatalf("%v, %v", at, err)
	}
	dir := pathOf(t, m, pod)
	want(t, filepath.Join(dir, "key.pem"), "key\n", 0o644)
	want(t, filepath.Join(dir, "d/chain.pem"), "chain\n", 0o644)
	want(t, filepath.Join(dir, "bundle.pem"), "key\nchain\n", 0o644)
	if err := m.Clear(t.Context(), pod.UID); err != nil || certs.forgotten != pod.UID {
		t.Errorf("%v, the keys of pod %q were forgotten", err, certs.forgotten)
	}
}
