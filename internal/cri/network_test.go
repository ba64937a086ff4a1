package cri

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hangingPlugin answers as CNI requires, unless there is a file named hang-COMMAND next to it.
const hangingPlugin = `#!/bin/sh
dir=$(dirname "$0")
[ -e $dir/hang-$CNI_COMMAND ] && exec sleep 1000
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}';;
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"interface":0,"address":"192.0.2.7/24"},{"interface":0,"address":"fd00::7/64"}]}';;
CHECK) echo '{"cniVersion":"1.0.0","code":100,"msg":"eth0 is gone"}'; exit 1;;
esac
`

// TestHangingCNIPlugin: a call and its repetition get the same error, which names the plugin and
// the network. Once the plugin responds again, the pod starts; a plugin that hangs at DEL does
// not keep the pod from stopping. On a busy machine a plugin that does not hang may be just as late:
// then the call is repeated, as a kubelet would.
func TestHangingCNIPlugin(t *testing.T) {
	bin, conf := t.TempDir(), t.TempDir()
	n := newNode(t, func(c *Config) {
		c.CNIConfDir, c.CNIBinDirs, c.CNIOnly, c.CNITimeout = conf, []string{bin}, true, 500*time.Millisecond
	})
	write := func(path, text string) {
		n.must(os.WriteFile(path+".new", []byte(text), 0o755))
		n.must(os.Rename(path+".new", path))
	}
	condition := func() *runtimeapi.RuntimeCondition {
		st, err := n.run.Status(t.Context(), false)
		n.must(err)
		return st.GetStatus().GetConditions()[1]
	}
	if c := condition(); c.Status || c.Reason != "NetworkPluginNotReady" || !strings.Contains(c.Message, "cni plugin not initialized: no CNI network is configured in "+conf) {
		t.Errorf("without a network: %+v", c)
	}
	write(filepath.Join(bin, "slow"), hangingPlugin)
	write(filepath.Join(conf, "10-slow.conflist"), `{"cniVersion":"1.0.0","name":"slownet","plugins":[{"type":"slow"}]}`)
	waitFor(t, "with a network", func() bool { return condition().Status })
	write(filepath.Join(bin, "hang-ADD"), "")
	cfg := n.podConfig()
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			_, err := n.run.RunPodSandbox(t.Context(), cfg, "")
			if err == nil || !strings.Contains(err.Error(), "CNI network slownet") ||
				!strings.Contains(err.Error(), "CNI plugin slow did not answer ADD within ") {
				t.Errorf("got %v", err)
			}
		})
	}
	calls.Wait()
	n.must(os.Remove(filepath.Join(bin, "hang-ADD")))
	var id string
	waitFor(t, "the pod", func() (ok bool) {
		var err error
		id, err = n.run.RunPodSandbox(t.Context(), cfg, "")
		if err != nil && !strings.Contains(err.Error(), "did not answer") {
			t.Fatal(err)
		}
		return err == nil
	})
	var st *runtimeapi.PodSandboxStatusResponse
	waitFor(t, "what CHECK says", func() bool {
		var err error
		st, err = n.run.PodSandboxStatus(t.Context(), id, true)
		n.must(err)
		return !strings.Contains(st.GetInfo()["info"], "did not answer")
	})
	if net := st.GetStatus().GetNetwork(); net.GetIp() != "192.0.2.7" || len(net.GetAdditionalIps()) != 1 || net.GetAdditionalIps()[0].GetIp() != "fd00::7" {
		t.Errorf("network status %+v", net)
	}
	if !strings.Contains(st.GetInfo()["info"], "eth0 is gone") {
		t.Errorf("inspectp does not tell what CHECK says: %s", st.GetInfo()["info"])
	}
	write(filepath.Join(bin, "hang-DEL"), "")
	n.must(n.run.StopPodSandbox(t.Context(), id))
	n.must(n.run.RemovePodSandbox(t.Context(), id))
	if err := os.Remove(filepath.Join(bin, "hang-DEL")); err != nil {
		t.Fatal(err)
	}
}

func TestTwoAddressFamilies(t *testing.T) {
	n := newNode(t, func(c *Config) { c.PodCIDR2 = netip.MustParsePrefix("fd00:4141::/112") })
	p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}
	})
	want := func() {
		t.Helper()
		st, err := n.run.PodSandboxStatus(t.Context(), p.id, true)
		n.must(err)
		if net := st.GetStatus().GetNetwork(); net.GetIp() == "" || len(net.GetAdditionalIps()) != 1 || !strings.HasPrefix(net.GetAdditionalIps()[0].GetIp(), "fd00:4141::") {
			t.Errorf("network status %+v", net)
		}
		if !strings.Contains(st.GetInfo()["info"], `"networkCheck":"ok"`) {
			t.Errorf("CHECK: %s", st.GetInfo()["info"])
		}
	}
	want()
	n.restart()
	want()
	bad := n.podConfig(func(c *runtimeapi.PodSandboxConfig) {
		c.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "1"}
	})
	if _, err := n.run.RunPodSandbox(t.Context(), bad, ""); err == nil || !strings.Contains(err.Error(), "kubernetes.io/ingress-bandwidth") {
		t.Errorf("an unreasonable bandwidth: %v", err)
	}
}
