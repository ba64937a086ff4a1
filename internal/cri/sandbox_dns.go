package cri

import (
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
func (b *sandbox) takeDNS(d *cni.DNS) error {
	if d == nil || !namesNoDNS(b.config.GetDnsConfig()) {
		return nil
	}
	doc, err := resolvConf(&runtimeapi.DNSConfig{Servers: d.Servers, Searches: d.Searches, Options: d.Options})
	if err != nil {
		return err
	}
	return os.WriteFile(b.etcFile("resolv.conf"), doc, 0o644)
}
