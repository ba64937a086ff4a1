package apiserver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// A signing key that is a link to a file which is gone used to be replaced without a word.
func TestReplacedSigningKeyIsTold(t *testing.T) {
	cfg := DefaultConfig()
	cfg.DataDir, cfg.BindAddress = t.TempDir(), net.IPv4(127, 0, 0, 1)
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(cfg.CertDir, "sa.key")
	for _, c := range []struct {
		before string
		change func() error
		told   bool
	}{
		{before: "the first start", change: func() error { return nil }},
		{before: "the key is there", change: func() error { return nil }},
		{before: "the key is gone", change: func() error { return os.Remove(key) }, told: true},
		{before: "a link to nothing", change: func() error { return errors.Join(os.Remove(key), os.Symlink("nothing", key)) }, told: true},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		state := klog.CaptureState()
		klog.SetLogger(log)
		_, err := loadCredentials(&cfg, time.Now())
		state.Restore()
		if err != nil {
			t.Fatalf("%s: %v", c.before, err)
		}
		said := log.GetSink().(ktesting.Underlier).GetBuffer().String()
		if strings.Contains(said, "signing key was missing") != c.told {
			t.Errorf("%s: %q", c.before, said)
		}
	}
}
