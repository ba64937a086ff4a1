package sandbox

import (
	"bytes"
	"errors"
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cni"
)

// namesNoDNS reports whether the client left the pod's DNS to the runtime.
func namesNoDNS(c *runtimeapi.DNSConfig) bool {
	return len(c.GetServers())+len(c.GetSearches())+len(c.GetOptions()) == 0
}

// takeDNS replaces the machine's resolv.conf in the pod with the DNS that the CNI plugins reported.
// What the client asked for goes before that: a kubelet's dnsPolicy and dnsConfig hold on any
// network.
func (b *Sandbox) takeDNS(d *cni.DNS) error {
	if d == nil || !namesNoDNS(b.Config.GetDnsConfig()) {
		return nil
	}
	doc, err := resolvConf(&runtimeapi.DNSConfig{Servers: d.Servers, Searches: d.Searches, Options: d.Options})
	if err != nil {
		return err
	}
	return os.WriteFile(b.etcFile("resolv.conf"), doc, 0o644)
}

// resolvConf returns resolv.conf with the pod's DNS configuration, or the machine's if it has none.
func resolvConf(c *runtimeapi.DNSConfig) ([]byte, error) {
	if namesNoDNS(c) {
		doc, err := os.ReadFile("/etc/resolv.conf")
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return doc, err
	}
	var b bytes.Buffer
	line := func(keyword string, values []string) {
		if len(values) > 0 {
			b.WriteString(keyword)
			for _, v := range values {
				b.WriteString(" " + v)
			}
			b.WriteByte('\n')
		}
	}
	line("search", c.GetSearches())
	for _, s := range c.GetServers() {
		line("nameserver", []string{s})
	}
	line("options", c.GetOptions())
	return b.Bytes(), nil
}
