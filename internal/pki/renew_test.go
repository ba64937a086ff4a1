package pki

import (
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// A process that ran for a year went on with certificates that had expired, and one that was started with the clock ahead
// had certificates that were not valid yet once the clock was right.
func TestCertificatesAreRenewedWhileTheProcessRuns(t *testing.T) {
	began := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		clock time.Duration // since then
		made  bool
		err   string
	}{
		"a day later":                  {clock: 24 * time.Hour},
		"two months before the end":    {clock: leafValidity - renewBefore + time.Hour, made: true},
		"after the end":                {clock: leafValidity + time.Hour, made: true},
		"a time zone back":             {clock: -14 * time.Hour},
		"further back than the CA":     {clock: -30 * time.Hour, err: "is valid from 2026-11-28T12:00:00Z to 2036-"},
		"without a clock":              {clock: -50 * 365 * 24 * time.Hour, err: "set the clock"},
		"after the end of the CA, too": {clock: caValidity + time.Hour, made: true, err: "set the clock"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ca, err := LoadOrCreateCA(dir, "ca", "kubernetes", began)
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			leaf := Leaf{CommonName: "admin", Client: true, Renewed: func() error { told++; return nil }}
			file, key, err := ca.Issue(dir, "admin", leaf, began)
			if err != nil {
				t.Fatal(err)
			}
			served, err := OpenFiles(file, key)
			if err != nil {
				t.Fatal(err)
			}
			first := current(t, served)
			now := began.Add(c.clock)
			err = ca.Renew(t.Context(), now)
			if got := errText(err); c.err == "" && err != nil || !strings.Contains(got, c.err) {
				t.Errorf("got %v", err)
			}
			if second := current(t, served); second.Equal(first) == c.made || (told == 1) != c.made {
				t.Errorf("from %s to %s; told %d times", second.NotBefore, second.NotAfter, told)
			}
			if err := ca.Renew(t.Context(), now); (told == 1) != c.made || (err == nil) != (c.err == "") {
				t.Errorf("and again: told %d times, %v", told, err)
			}
		})
	}
}

// A certificate whose user could not be told is tried again.
func TestRenewalsThatFailAreTriedAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	ca, err := LoadOrCreateCA(dir, "ca", "kubernetes", now)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	leaf := Leaf{CommonName: "admin", Renewed: func() error {
		if told++; told == 1 {
			return errors.New("the disk is full")
		}
		return nil
	}}
	if _, _, err := ca.Issue(dir, "admin", leaf, now); err != nil {
		t.Fatal(err)
	}
	now = now.Add(leafValidity)
	if err := ca.Renew(t.Context(), now); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("got %v", err)
	}
	if err := ca.Renew(t.Context(), now); err != nil || told != 2 {
		t.Errorf("then %v, told %d times", err, told)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 4 {
		t.Errorf("%v, %v", entries, err)
	}
}

// An authority that is made while the clock is in the last century has expired once it is right.
func TestNoAuthorityIsMadeWithoutAClock(t *testing.T) {
	dir := t.TempDir()
	err := RefuseClock(dir, "ca", time.Unix(40, 0))
	if err == nil || !strings.Contains(err.Error(), "the clock says 1970-01-01T00:00:40Z: set it before") {
		t.Errorf("got %v", err)
	}
	if err := RefuseClock(dir, "ca", time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := LoadOrCreateCA(dir, "ca", "kubernetes", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := RefuseClock(dir, "ca", time.Unix(40, 0)); err != nil {
		t.Errorf("what is there is not used: %v", err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func current(t *testing.T, f *Files) *x509.Certificate {
	t.Helper()
	c, err := f.Current()
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}
