package cri

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPodOnMacvlan: a pod whose network is Debian's plugins macvlan and tuning, on a cable that the
// test lays.
func TestPodOnMacvlan(t *testing.T) {
	const theirs = "/usr/lib/cni"
	for _, plugin := range []string{"macvlan", "tuning", "static"} {
		if _, err := os.Stat(filepath.Join(theirs, plugin)); err != nil {
			t.Skipf("needs the plugin %s of the package containernetworking-plugins", plugin)
		}
	}
	conf := t.TempDir()
	n := newNode(t, func(c *Config) { c.CNIConfDir, c.CNIBinDirs, c.CNIOnly = conf, []string{theirs}, true })
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	router, cable := "wherry-"+n.cfg.InstanceID, "whm-"+n.cfg.InstanceID
	run("ip", "netns", "add", router)
	t.Cleanup(func() { run("ip", "netns", "del", router) })
	run("ip", "link", "add", cable, "type", "veth", "peer", "name", "lan0", "netns", router)
	t.Cleanup(func() { run("ip", "link", "del", cable) })
	run("ip", "link", "set", cable, "up")
	run("ip", "-n", router, "link", "set", "lan0", "up")
	run("ip", "-n", router, "address", "add", "10.23.0.1/24", "dev", "lan0")
	n.must(os.WriteFile(filepath.Join(conf, "10-lan.conflist"), fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"lan","plugins":[
	 {"type":"macvlan","master":%q,"mode":"bridge","ipam":{"type":"static",
	  "addresses":[{"address":"10.23.0.50/24","gateway":"10.23.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}},
	 {"type":"tuning","mac":"0a:58:0a:17:00:32","sysctl":{"net.core.somaxconn":"500"}}]}`, cable), 0o600))
	p := n.pod()
	id := p.sh("main", "sleep 100000")
	look := func() {
		t.Helper()
		st, err := n.run.PodSandboxStatus(t.Context(), p.id, true)
		n.must(err)
		if st.GetStatus().GetNetwork().GetIp() != "10.23.0.50" || !strings.Contains(st.GetInfo()["info"], `"networkCheck":"ok"`) {
			t.Errorf("network %+v, %s", st.GetStatus().GetNetwork(), st.GetInfo()["info"])
		}
		n.exec(id, "ping", "-c1", "-W60", "10.23.0.1")
		if got := n.exec(id, "cat", "/sys/class/net/eth0/address", "/proc/sys/net/core/somaxconn"); got != "0a:58:0a:17:00:32\n500\n" {
			t.Errorf("in the container: %q", got)
		}
		run("ip", "netns", "exec", router, "busybox", "ping", "-c1", "-W60", "10.23.0.50")
	}
	look()
	n.restart()
	look()
	n.must(n.run.StopPodSandbox(t.Context(), p.id))
	n.must(n.run.RemovePodSandbox(t.Context(), p.id))
}
