package pki

import (
	"os"
	"path/filepath"
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
