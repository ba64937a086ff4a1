package policy_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"wherry.dev/internal/proxy/policy"
)

// Policies hold for frames that pods make themselves only if the bridge shows nftables what it switches,
// whatever the machine's other bridges do.
func TestBridgeShowsWhatItSwitches(t *testing.T) {
	const bridge = "wh-shows"
	if out, err := exec.CommandContext(t.Context(), "ip", "link", "add", bridge, "type", "bridge").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "link", "del", bridge).CombinedOutput(); err != nil { //nolint:noctx // the test's is over
			t.Errorf("%v: %s", err, out)
		}
	})
	for range 2 {
		if err := policy.ShowBridged(t.Context(), bridge); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"iptables", "ip6tables"} {
			if got, err := os.ReadFile("/sys/class/net/" + bridge + "/bridge/nf_call_" + name); err != nil || strings.TrimSpace(string(got)) != "1" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
	if err := policy.ShowBridged(t.Context(), "wh-none"); err == nil || !strings.Contains(err.Error(), "get around network policies") {
		t.Errorf("a bridge that is not there: %v", err)
	}
}
