package daemon

import (
	"slices"
	"testing"

	"wherry.dev/internal/config"
)

// TestServersAreToldOfTheDNSFromTheStart: one that came before this server's own DNS server was there was told that the
// cluster has none, for good, and its pods got the machine's resolv.conf.
func TestServersAreToldOfTheDNSFromTheStart(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*config.Config)
		want   []string
	}{
		"our own":         {func(*config.Config) {}, []string{"10.96.0.10"}},
		"somebody else's": {func(c *config.Config) { c.ClusterDNS = []string{"10.1.2.3"} }, []string{"10.1.2.3"}},
		"none":            {func(c *config.Config) { c.DNS = config.DNSNone }, nil},
	} {
		cfg := config.Default()
		cfg.NodeIP = "192.0.2.1"
		tc.change(&cfg)
		info, err := New(cfg, nil).clusterInfo([]byte("authority"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(info.Facts.DNS, tc.want) {
			t.Errorf("%s: %q, want %q", name, info.Facts.DNS, tc.want)
		}
	}
}
