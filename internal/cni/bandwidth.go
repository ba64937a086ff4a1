package cni

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"wherry.dev/internal/netns"
)

// Bandwidth limits a pod's traffic, in bits per second; 0 means no limit.
type Bandwidth struct {
	Ingress uint64 // to the pod
	Egress  uint64 // from the pod
}

// shape puts a token bucket on each direction that has a limit. Both buckets disappear with the
// links.
func shape(link string, pod Pod) error {
	if pod.Bandwidth.Ingress > 0 {
		if err := tokenBucket(link, pod.Bandwidth.Ingress); err != nil {
			return fmt.Errorf("limit traffic to sandbox %s: %w", pod.ID, err)
		}
	}
	if pod.Bandwidth.Egress > 0 {
		err := netns.Do(func() error { return tokenBucket(IfName, pod.Bandwidth.Egress) }, pod.NetNS)
		if err != nil {
			return fmt.Errorf("limit traffic from sandbox %s: %w", pod.ID, err)
		}
	}
	return nil
}

// tokenBucket limits what a link sends. It may send a tenth of a second's worth at once, and
// queue a quarter of a second's worth.
func tokenBucket(name string, bits uint64) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	const smallest = 128 << 10 // two packets of the largest size that a veth passes unsplit
	rate := max(bits/8, 1)
	burst := uint32(min(max(rate/10, smallest), 1<<30))
	return netlink.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Limit:      uint32(min(rate/4+uint64(burst), 1<<31)),
		Buffer:     netlink.Xmittime(rate, burst),
	})
}
