package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLostCA: a lost CA used to be replaced without a word, and nobody who had one of its
// certificates was trusted any more.
func TestLostCA(t *testing.T) {
	now := time.Now()
	load := func(t *testing.T, dir string) (*CA, error) {
		t.Helper()
		if err := RefuseLost(dir, "ca", "kubernetes"); err != nil {
			return nil, err
		}
		return LoadOrCreateCA(dir, "ca", "kubernetes", now)
	}
	for name, c := range map[string]struct {
		lose []string
		want string
	}{
		"nothing":       {nil, ""},
		"both":          {[]string{"ca.crt", "ca.key"}, "is missing: restore"},
		"key":           {[]string{"ca.key"}, "the key of the certificate authority"},
		"certificate":   {[]string{"ca.crt"}, ""}, // the same key signs another one
		"all that is":   {[]string{"ca.crt", "ca.key", "admin.crt", "admin.key"}, ""},
		"another's key": {[]string{"swap"}, "is not the key"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ca, err := load(t, dir)
			if err != nil || !ca.New() {
				t.Fatal(ca, err)
			}
			if _, _, err := ca.Issue(dir, "admin", Leaf{CommonName: "admin", Client: true}, now); err != nil {
				t.Fatal(err)
			}
			for _, f := range c.lose {
				err := os.Remove(filepath.Join(dir, f))
				if f == "swap" {
					err = os.Rename(filepath.Join(dir, "admin.key"), filepath.Join(dir, "ca.key"))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			again, err := load(t, dir)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == "certificate" {
				leaf, err := readCert(filepath.Join(dir, "admin.crt"))
				if err != nil || leaf.CheckSignatureFrom(again.cert) != nil {
					t.Errorf("what it had signed is not good any more: %v", err)
				}
			}
		})
	}
}
