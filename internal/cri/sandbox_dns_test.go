package cri

import (
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namingPlugin answers ADD with an address and with the DNS that is in the file dns next to it.
const namingPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}';;
ADD) printf '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}],"dns":%s}' "$(cat "$(dirname "$0")/dns")";;
esac
`

// TestDNSOfTheNetwork: the client's DNS, else that of the CNI result, else the machine's.
func TestDNSOfTheNetwork(t *testing.T) {
	bin, conf := t.TempDir(), t.TempDir()
	n := newNode(t, func(c *Config) { c.CNIConfDir, c.CNIBinDirs, c.CNIOnly = conf, []string{bin}, true })
	n.must(os.WriteFile(filepath.Join(bin, "naming"), []byte(namingPlugin), 0o755))
	n.must(os.WriteFile(filepath.Join(conf, "10.conflist"), []byte(`{"cniVersion":"1.0.0","name":"named","plugins":[{"type":"naming"}]}`), 0o600))
	host, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	const all = `{"nameservers":["192.0.2.53","fd00::53"],"domain":"d.test","search":["a.test","b.test"],"options":["ndots:2"]}`
	none := &runtimeapi.DNSConfig{}
	for _, tc := range []struct {
		result string
		asked  *runtimeapi.DNSConfig
		want   string
	}{
		{all, nil, "search a.test b.test\nnameserver 192.0.2.53\nnameserver fd00::53\noptions ndots:2\n"},
		{`{"nameservers":["192.0.2.53"],"domain":"d.test"}`, none, "search d.test\nnameserver 192.0.2.53\n"},
		{`{"nameservers":["192.0.2.53"]}`, none, "nameserver 192.0.2.53\n"},
		{all, &runtimeapi.DNSConfig{Servers: []string{"198.51.100.1"}}, "nameserver 198.51.100.1\n"},
		{all, &runtimeapi.DNSConfig{Searches: []string{"c.test"}}, "search c.test\n"},
		{`{"search":["a.test"]}`, nil, string(host)}, // no server to ask
		{`{}`, none, string(host)},
		{`{"nameservers":["192.0.2.53\nnameserver 192.0.2.66","192.0.2.54"],"search":["a.test\noptions x","b.test"]}`, nil, "search b.test\nnameserver 192.0.2.54\n"},
	} {
		n.must(os.WriteFile(filepath.Join(bin, "dns"), []byte(tc.result), 0o600))
		p := n.pod(func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig = tc.asked })
		if got, _ := p.output(containerConfig("cat", "cat", "/etc/resolv.conf")); got != tc.want {
			t.Errorf("result %s, asked for %v: resolv.conf is %q, want %q", tc.result, tc.asked, got, tc.want)
		}
	}
}
