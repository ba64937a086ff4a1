package criconfig

import (
	"bytes"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Hosts returns the content of a pod's /etc/hosts. host is the node's own file,
// which pods on the node's network get.
func Hosts(pod *v1.Pod, ips []string, hostname, domain string, host []byte) []byte {
	var b bytes.Buffer
	if pod.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(host)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n")
		b.WriteString("127.0.0.1\tlocalhost\n")
		b.WriteString("::1\tlocalhost ip6-localhost ip6-loopback\n")
		b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		for _, ip := range ips {
			b.WriteString(ip + "\t")
			if domain != "" {
				b.WriteString(hostname + "." + domain + "\t")
			}
			b.WriteString(hostname + "\n")
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
		}
	}
	return b.Bytes()
}
