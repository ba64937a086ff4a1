package bootstrap

import (
	"testing"
	"time"

	"wherry.dev/internal/pki"
)

func TestTrustDropsExpiredCertificates(t *testing.T) {
	issued := func(name string, now time.Time) []byte {
		ca, err := pki.LoadOrCreateCA(t.TempDir(), "ca", name, now)
		if err != nil {
			t.Fatal(err)
		}
		text, err := ca.Cert()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	now := time.Now()
	old, valid, own := issued("old", now.AddDate(-20, 0, 0)), issued("valid", now), issued("own", now)
	got, err := mergeCertificates([]byte(string(old)+string(valid)+string(own)), own, now)
	if err != nil || string(got) != string(valid)+string(own) {
		t.Errorf("%s, %v", got, err)
	}
}
