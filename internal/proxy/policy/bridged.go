package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bridgeSysctls is there when the kernel can show nftables what bridges switch. The switches in it are
// for all bridges of the network namespace.
const bridgeSysctls = "/proc/sys/net/bridge"

// ShowBridged makes a bridge show nftables the packets that it switches from pod to pod, as if they were
// routed. Pods send each other nothing but routed packets, unless one makes frames of its own, as
// programs with the capability NET_RAW can: those must not get around policies. It is done with the first
// policy and not before: such packets then pass the rules of the machine's other tables, too.
func ShowBridged(ctx context.Context, bridge string) error {
	if err := loadBridgeFilter(ctx); err != nil {
		return fmt.Errorf("pods of this node with the capability NET_RAW can get around network policies: the kernel's module br_netfilter is missing: %w", err)
	}
	for _, name := range []string{"nf_call_iptables", "nf_call_ip6tables"} {
		path := filepath.Join("/sys/class/net", bridge, "bridge", name)
		if has, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(has)) == "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			return fmt.Errorf("pods of this node with the capability NET_RAW can get around network policies: %w", err)
		}
	}
	return nil
}

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
		if err := os.WriteFile(filepath.Join(bridgeSysctls, "bridge-nf-call-"+name), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}
