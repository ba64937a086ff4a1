package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/netns"
)

// Pod returns the sandbox as the network sees it.
func (b *Sandbox) Pod() cni.Pod {
	m := b.Config.GetMetadata()
	p := cni.Pod{
		ID: b.ID, Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(),
		NetNS: b.netnsPath(), Ports: portMappings(b.Config.GetPortMappings()),
		Cgroup: b.Config.GetLinux().GetCgroupParent(),
	}
	if d := b.Config.GetDnsConfig(); d != nil {
		p.DNS = &cni.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	if at := b.current().Network; at != nil {
		p.IPs = at.IPs
	}
	p.Bandwidth, _ = bandwidth(b.Config.GetAnnotations()) // what does not parse was refused earlier
	return p
}

func portMappings(ps []*runtimeapi.PortMapping) []cni.PortMapping {
	var out []cni.PortMapping
	for _, p := range ps {
		if p.GetHostPort() <= 0 || p.GetHostPort() > 65535 || p.GetContainerPort() <= 0 || p.GetContainerPort() > 65535 {
			continue // declared only, not opened on the host
		}
		ip, err := netip.ParseAddr(p.GetHostIp())
		if err != nil {
			ip = netip.Addr{} // empty means every address; anything else was refused earlier
		}
		out = append(out, cni.PortMapping{
			Protocol: strings.ToLower(p.GetProtocol().String()), HostIP: ip,
			ContainerPort: uint16(p.GetContainerPort()), HostPort: uint16(p.GetHostPort()),
		})
	}
	return out
}

// netDev returns the kernel's counters of the pod's interfaces.
func (b *Sandbox) netDev() (string, error) {
	var doc []byte
	err := netns.Do(func() (err error) {
		doc, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	}, b.netnsPath())
	if err != nil {
		return "", fmt.Errorf("network statistics of sandbox %s: %w", b.ID, err)
	}
	return string(doc), nil
}

// Dial connects to localhost in the pod's network, over IPv4 and then IPv6. Its error
// is one line in containerd's words, because kubectl shows it.
func (b *Sandbox) Dial(ctx context.Context, port int32) (*net.TCPConn, error) {
	connect := func() (*net.TCPConn, error) {
		var errs [2]error
		for i, host := range []string{"127.0.0.1", "::1"} {
			// DialContext may use another thread, in another namespace, but not for a literal
			// address: that takes one socket, made on this thread.
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				return c.(*net.TCPConn), nil
			}
			errs[i] = err
		}
		return nil, fmt.Errorf("failed to connect to localhost:%d inside namespace %q, IPv4: %w IPv6: %w", port, b.ID, errs[0], errs[1])
	}
	if !b.Networks {
		return connect()
	}
	var c *net.TCPConn
	err := netns.Do(func() (err error) { c, err = connect(); return err }, b.netnsPath())
	return c, err
}
