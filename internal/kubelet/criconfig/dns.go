package criconfig

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// Limits on a resolv.conf that the resolvers in images have.
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchesSize = 2048
)

// DNSInput is what a pod's DNS depends on.
type DNSInput struct {
	Pod           *v1.Pod
	ClusterDNS    []string
	ClusterDomain string
	// NoClusterDNS says that there is no cluster DNS because the cluster has none.
	NoClusterDNS bool
	// Host is the node's resolv.conf; NoHost says that it has none.
	Host   []byte
	NoHost bool
	// NodeIPs show which IP families the node has.
	NodeIPs []string
}

// Warning is the content of an event.
type Warning struct{ Reason, Message string }

// DNS returns a pod's resolver configuration, and warnings for events: that the
// cluster has no DNS, or that limits were exceeded.
func DNS(in DNSInput) (*runtimeapi.DNSConfig, []Warning) {
	host := ParseResolvConf(in.Host)
	cfg, warnings := &runtimeapi.DNSConfig{}, []Warning(nil)
	policy := in.Pod.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && in.Pod.Spec.HostNetwork {
		policy = v1.DNSDefault
	}
	if policy == "" {
		policy = v1.DNSClusterFirst
	}
	if policy == v1.DNSClusterFirst || policy == v1.DNSClusterFirstWithHostNet {
		if len(in.ClusterDNS) > 0 {
			cfg = clusterDNS(in, host)
		} else if policy = v1.DNSDefault; !in.NoClusterDNS {
			warnings = append(warnings, Warning{"MissingClusterDNS", fmt.Sprintf(
				"pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
				pods.Format(in.Pod), v1.DNSClusterFirst, v1.DNSDefault)})
		}
	}
	if policy == v1.DNSDefault {
		cfg = host
		if in.NoHost {
			cfg = noDNS(in.NodeIPs)
		}
	}
	if c := in.Pod.Spec.DNSConfig; c != nil {
		cfg.Servers = merge(cfg.Servers, c.Nameservers)
		cfg.Searches = merge(cfg.Searches, c.Searches)
		cfg.Options = mergeOptions(cfg.Options, c.Options)
	}
	return cfg, append(warnings, limit(cfg)...)
}

// noDNS returns a configuration that asks only the pod itself: the runtime would fill in an empty
// one from the node's.
func noDNS(nodeIPs []string) *runtimeapi.DNSConfig {
	cfg := &runtimeapi.DNSConfig{Searches: []string{"."}}
	for _, ip := range nodeIPs {
		local := "127.0.0.1"
		if strings.Contains(ip, ":") {
			local = "::1"
		}
		cfg.Servers = merge(cfg.Servers, []string{local})
	}
	if len(cfg.Servers) == 0 {
		cfg.Servers = []string{"127.0.0.1"}
	}
	return cfg
}

func clusterDNS(in DNSInput, host *runtimeapi.DNSConfig) *runtimeapi.DNSConfig {
	domain := in.ClusterDomain
	cfg := &runtimeapi.DNSConfig{Servers: slices.Clone(in.ClusterDNS), Options: []string{"ndots:5"}}
	if domain != "" {
		cfg.Searches = []string{in.Pod.Namespace + ".svc." + domain, "svc." + domain, domain}
	}
	cfg.Searches = merge(cfg.Searches, host.Searches)
	return cfg
}

func merge(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

func mergeOptions(have []string, more []v1.PodDNSConfigOption) []string {
	for _, o := range more {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		same := func(s string) bool { name, _, _ := strings.Cut(s, ":"); return name == o.Name }
		if i := slices.IndexFunc(have, same); i >= 0 {
			have[i] = text
		} else {
			have = append(have, text)
		}
	}
	return have
}

// limit trims a configuration to what resolvers accept.
func limit(cfg *runtimeapi.DNSConfig) []Warning {
	const reason = "DNSConfigForming"
	var warnings []Warning
	if len(cfg.Servers) > maxNameservers {
		cfg.Servers = cfg.Servers[:maxNameservers]
		warnings = append(warnings, Warning{reason, "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " + strings.Join(cfg.Servers, " ")})
	}
	n, size := 0, 0
	for n < len(cfg.Searches) && n < maxSearches && size+len(cfg.Searches[n])+1 <= maxSearchesSize {
		size += len(cfg.Searches[n]) + 1
		n++
	}
	if n < len(cfg.Searches) {
		cfg.Searches = cfg.Searches[:n]
		warnings = append(warnings, Warning{reason, "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(cfg.Searches, " ")})
	}
	return warnings
}

// ParseResolvConf parses a resolv.conf. The last search line counts, as in resolvers.
func ParseResolvConf(data []byte) *runtimeapi.DNSConfig {
	cfg := &runtimeapi.DNSConfig{}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		line, _, _ := strings.Cut(sc.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			cfg.Servers = append(cfg.Servers, fields[1])
		case "search", "domain":
			cfg.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				cfg.Searches = append(cfg.Searches, s)
			}
		case "options":
			cfg.Options = fields[1:]
		}
	}
	return cfg
}
