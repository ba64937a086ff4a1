package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	proxyconfig "k8s.io/kube-proxy/config/v1alpha1"
)

func TestProxyConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	doc := `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: /k}
clusterCIDR: 10.1.0.0/16,fd00::/48
hostnameOverride: Node1
mode: nftables
nodePortAddresses: [127.0.0.0/8]
nftables: {masqueradeAll: true}
`
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	o := proxyOptions{file: file}
	o.config.MetricsBindAddress = "127.0.0.1:1"
	c, err := o.load()
	if err != nil {
		t.Fatal(err)
	}
	if c.ClientConnection.Kubeconfig != "/k" || c.MetricsBindAddress != "127.0.0.1:1" || c.HealthzBindAddress != "0.0.0.0:10256" {
		t.Errorf("%+v", c)
	}
	p, err := proxyConfig(&c)
	if err != nil || p.Node != "node1" || len(p.Pods) != 2 || !p.MasqueradeAll || !p.MasqueradeOutsiders {
		t.Fatalf("%+v, %v", p, err)
	}
	if ips, err := p.Addresses(); err != nil || len(ips) == 0 || ips[0].String() != "127.0.0.1" {
		t.Errorf("%v, %v", ips, err)
	}
	c.Mode = "ipvs"
	if _, err := proxyConfig(&c); err == nil || !strings.Contains(err.Error(), "only nftables") {
		t.Errorf("ipvs: %v", err)
	}
	if _, err := proxyConfig(&proxyconfig.KubeProxyConfiguration{DetectLocalMode: "NodeCIDR"}); err == nil || !strings.Contains(err.Error(), "NodeCIDR") {
		t.Errorf("detectLocalMode: %v", err)
	}
	if _, err := proxyConfig(&proxyconfig.KubeProxyConfiguration{ClusterCIDR: "x"}); err == nil {
		t.Error("a bad network is accepted")
	}
	if err := os.WriteFile(file, []byte("kind: KubeProxyConfiguration\nclusterCIDRR: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := o.load(); err == nil || !strings.Contains(err.Error(), "clusterCIDRR") {
		t.Errorf("a misspelt field: %v", err)
	}
}
