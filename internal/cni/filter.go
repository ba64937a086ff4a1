package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"k8s.io/klog/v2"

	"wherry.dev/internal/cni/rtnl"
)

// filterBridged makes the bridge show nftables the packets that it switches from pod to pod. Without
// that, network policies would not hold between pods of one node. A kernel that cannot do so keeps
// nobody from running pods: it is logged.
func (b *Bridge) filterBridged(ctx context.Context) error {
	if err := loadBridgeFilter(ctx); err != nil {
		klog.FromContext(ctx).Error(err,
			"Network policies will not hold between pods of this node: the kernel's module br_netfilter is missing", "bridge", b.cfg.Name)
		return nil
	}
	if err := b.host.Do(rtnl.FilterBridged(b.index)); err != nil {
		return fmt.Errorf("show nftables what the bridge switches: %w", err)
	}
	return nil
}

// bridgeSysctls is there when the kernel can show what bridges switch. The switches in it are for all
// bridges of the network namespace.
const bridgeSysctls = "/proc/sys/net/bridge"

// loadBridgeFilter loads the module br_netfilter if it is not there. Its switches are on when it
// comes; other bridges of the machine are not our business, so they are turned off then.
func loadBridgeFilter(ctx context.Context) error {
	if _, err := os.Stat(bridgeSysctls); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if out, err := exec.CommandContext(ctx, "modprobe", "br_netfilter").CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe br_netfilter: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for _, name := range []string{"arptables", "iptables", "ip6tables"} {
		if err := os.WriteFile(bridgeSysctls+"/bridge-nf-call-"+name, []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}
