package plugin

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// TestErrorsAreTheSpecs: errors have the codes and words of CNI spec 1.1, section 5, "Error".
func TestErrorsAreTheSpecs(t *testing.T) {
	h := newHost(t)
	ns := newNetNS(t)
	conf := func(more string) string {
		return strings.ReplaceAll(`{"cniVersion":"1.1.0","name":"n","type":"bridge","bridge":"brx","ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.1.2.0/24"}`+more+`}`, "DATA", h.data)
	}
	all := []string{"CNI_CONTAINERID=c1", "CNI_NETNS=" + ns, "CNI_IFNAME=eth0"}
	for _, c := range []struct {
		plugin, stdin string
		env           []string
		code          uint
		want          string
	}{
		{"bridge", conf(""), []string{"CNI_COMMAND=ADD"}, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"},
		{"bridge", conf(""), []string{"CNI_COMMAND=DANCE"}, types.ErrInvalidEnvironmentVariables, "DANCE"},
		{"bridge", conf(""), []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=/../x", "CNI_NETNS=" + ns, "CNI_IFNAME=eth0"}, types.ErrInvalidEnvironmentVariables, "invalid characters"},
		{"bridge", conf(""), []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=" + ns, "CNI_IFNAME=much-too-long-a-name"}, types.ErrInvalidEnvironmentVariables, "too long"},
		{"bridge", conf(""), append(all, "CNI_COMMAND=ADD", "CNI_ARGS=FOO=1"), types.ErrInvalidEnvironmentVariables, "FOO"},
		{"bridge", "{", append(all, "CNI_COMMAND=ADD"), types.ErrDecodingFailure, "JSON"},
		{"bridge", `{"cniVersion":"1.1.0","name":"n","mtu":"big"}`, append(all, "CNI_COMMAND=ADD"), types.ErrDecodingFailure, "mtu"},
		{"bridge", `{"cniVersion":"1.1.0"}`, append(all, "CNI_COMMAND=ADD"), types.ErrInvalidNetworkConfig, "missing network name"},
		{"bridge", `{"cniVersion":"9.9.9","name":"n"}`, append(all, "CNI_COMMAND=ADD"), types.ErrIncompatibleCNIVersion, "incompatible CNI versions"},
		{"bridge", `{"cniVersion":"1.0.0","name":"n"}`, []string{"CNI_COMMAND=STATUS"}, types.ErrIncompatibleCNIVersion, "STATUS"},
		{"bridge", conf(`,"vlan":5`), append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "vlan: 5"},
		{"bridge", conf(`,"macspoofchk":true`), append(all, "CNI_COMMAND=DEL"), types.ErrUnsupportedField, "macspoofchk: true"},
		{"bridge", conf(`,"bridgeName":"x"`), append(all, "CNI_COMMAND=CHECK"), types.ErrUnsupportedField, `bridgeName: "x"`},
		{"bridge", conf(`,"ipMasqBackend":"iptables"`), append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "ipMasqBackend"},
		{"bridge", conf(`,"runtimeConfig":{"infinibandGUID":"x"}`), append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "runtimeConfig.infinibandGUID"},
		{"bridge", conf(`,"hairpinMode":true,"promiscMode":true`), []string{"CNI_COMMAND=STATUS"}, types.ErrInvalidNetworkConfig, "hairpin mode and promiscuous mode"},
		{"bridge", conf(""), []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/no/such/netns", "CNI_IFNAME=eth0"}, types.ErrInvalidNetNS, "/no/such/netns"},
		{"bridge", conf(""), append(all, "CNI_COMMAND=CHECK"), types.ErrInternal, "Failed to find address added by container c1"},
		{"host-local", `{"cniVersion":"1.1.0","name":"n","ipam":{"type":"host-local","subnet":"10.1.2.0/24","rangeSize":3}}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "ipam.rangeSize: 3"},
		{"host-local", `{"cniVersion":"1.1.0","name":"n","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.2.0/24","start":"x"}]]}}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, `ipam.ranges.start: "x"`},
		{"host-local", `{"cniVersion":"1.1.0","name":"n","ipam":{"type":"host-local","ranges":[]}}`, append(all, "CNI_COMMAND=ADD"), types.ErrInvalidNetworkConfig, "no IP ranges specified"},
		{"host-local", `{"cniVersion":"1.1.0","name":"n"}`, append(all, "CNI_COMMAND=ADD"), types.ErrInvalidNetworkConfig, "IPAM config missing 'ipam' key"},
		{"portmap", `{"cniVersion":"1.1.0","name":"n","backend":"iptables"}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "iptables"},
		{"portmap", `{"cniVersion":"1.1.0","name":"n","markMasqBit":5}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "markMasqBit: 5"},
		{"portmap", `{"cniVersion":"1.1.0","name":"n","conditionsV4":["-s","10.0.0.0/8"]}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "conditionsV4"},
		{"portmap", `{"cniVersion":"1.1.0","name":"n"}`, append(all, "CNI_COMMAND=ADD"), types.ErrInvalidNetworkConfig, "must be called as chained plugin"},
		{"portmap", `{"cniVersion":"1.1.0","name":"n","runtimeConfig":{"portMappings":[{"hostPort":70000,"containerPort":1,"protocol":"tcp"}]}}`, append(all, "CNI_COMMAND=ADD"), types.ErrInvalidNetworkConfig, "Invalid host port number: 70000"},
		{"portmap", `{"cniVersion":"1.1.0","name":"n","runtimeConfig":{"portMappings":[{"hostPort":7,"containerPort":1,"protocol":"icmp"}]}}`, append(all, "CNI_COMMAND=ADD"), types.ErrInvalidNetworkConfig, `Invalid protocol "icmp"`},
		{"loopback", `{"cniVersion":"1.1.0","name":"n","type":"loopback","mtu":5}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "mtu: 5"},
		{"noop", `{"cniVersion":"1.1.0","name":"n","debug":true}`, append(all, "CNI_COMMAND=ADD"), types.ErrUnsupportedField, "debug: true"},
	} {
		_, fault, code := h.raw(c.plugin, c.stdin, c.env...)
		if code != 1 || fault.Code != c.code || !strings.Contains(fault.Error(), c.want) {
			t.Errorf("%s %v %s: exit %d, code %d, %v; want code %d, %q", c.plugin, c.env, c.stdin, code, fault.Code, fault.Error(), c.code, c.want)
		}
	}
	h.wantClean()
}

// TestWhatAsksForNothingIsNotRefused: generators write fields out with their defaults.
func TestWhatAsksForNothingIsNotRefused(t *testing.T) {
	h := newHost(t)
	conf := `{"cniVersion":"1.1.0","name":"n","type":"bridge","vlan":0,"macspoofchk":false,"vlanTrunk":[],"preserveDefaultVlan":false,
	 "cni.dev/something":"of the runtime's","capabilities":{"mac":true},"args":{"cni":{"labels":["x"]}},"dns":{}}`
	if out, fault, code := h.raw("bridge", conf, "CNI_COMMAND=STATUS"); code != 0 || out != "" {
		t.Errorf("%q %v", out, fault)
	}
}

func TestVersionAndAbout(t *testing.T) {
	h := newHost(t)
	for _, name := range Names() {
		out, _, code := h.raw(name, "", "CNI_COMMAND=VERSION")
		var v struct {
			CNIVersion        string
			SupportedVersions []string
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v.CNIVersion != "1.1.0" || len(v.SupportedVersions) != 7 {
			t.Errorf("%s: %s, %v", name, out, err)
		}
		if out, _, code := h.raw(name, ""); code != 0 || out != "" {
			t.Errorf("%s without a command: %q, exit %d", name, out, code)
		}
	}
}

// TestExampleOfTheSpec is the network of CNI spec 1.1, section 1 and appendix, with those of its
// plugins that we have.
func TestExampleOfTheSpec(t *testing.T) {
	h := newHost(t)
	ns := newNetNS(t)
	env := []string{"CNI_CONTAINERID=b552f9", "CNI_NETNS=" + ns, "CNI_IFNAME=eth0"}
	ipam := strings.ReplaceAll(`"ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.1.0.0/16","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.1.0.1"]}`, "DATA", h.data)
	bridge := `{"cniVersion":"1.1.0","name":"dbnet","type":"bridge","bridge":"cni0","keyA":"","isGateway":true,` + ipam
	out, fault, code := h.raw("bridge", bridge+"}", append(env, "CNI_COMMAND=ADD")...)
	if code != 0 {
		t.Fatal(fault.Error())
	}
	var r struct {
		IPs    []struct{ Address, Gateway string }
		Routes []struct{ Dst string }
		DNS    struct{ Nameservers []string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.IPs) != 1 || r.IPs[0].Address != "10.1.0.2/16" || r.IPs[0].Gateway != "10.1.0.1" ||
		len(r.Routes) != 1 || r.Routes[0].Dst != "0.0.0.0/0" || len(r.DNS.Nameservers) != 1 {
		t.Errorf("ADD of bridge: %s", out)
	}
	portmap := `{"cniVersion":"1.1.0","name":"dbnet","type":"portmap","capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"prevResult":` + out
	passed, fault, code := h.raw("portmap", portmap+"}", append(env, "CNI_COMMAND=ADD")...)
	if code != 0 || !strings.Contains(passed, "10.1.0.2/16") {
		t.Fatalf("ADD of portmap: %s %v", passed, fault.Error())
	}
	gc := `,"cni.dev/valid-attachments":[{"containerID":"b552f9","ifname":"eth0"}]`
	for _, step := range []struct{ plugin, stdin, command string }{
		{"bridge", bridge + `,"prevResult":` + out + "}", "CHECK"},
		{"portmap", portmap + "}", "CHECK"},
		{"bridge", bridge + gc + "}", "GC"},
		{"portmap", strings.Split(portmap, `,"runtimeConfig"`)[0] + gc + "}", "GC"},
		{"bridge", bridge + "}", "STATUS"},
		{"portmap", portmap + "}", "CHECK"}, // GC has kept it
		{"portmap", portmap + "}", "DEL"},
		{"bridge", bridge + `,"prevResult":` + out + "}", "DEL"},
	} {
		if said, fault, code := h.raw(step.plugin, step.stdin, append(env, "CNI_COMMAND="+step.command)...); code != 0 || said != "" {
			t.Errorf("%s of %s: exit %d, %q, %v", step.command, step.plugin, code, said, fault.Error())
		}
	}
	h.wantClean()
	if left, err := filepath.Glob(filepath.Join(h.data, "dbnet", "10.*")); err != nil || len(left) > 0 {
		t.Errorf("leases %v, %v", left, err)
	}
}
