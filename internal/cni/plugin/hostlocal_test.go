package plugin

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
)

// leaser leases addresses of a configuration.
type leaser struct {
	t    *testing.T
	dir  string
	conf string
}

func newLeaser(t *testing.T, ipam string) *leaser {
	t.Helper()
	dir := t.TempDir()
	return &leaser{t, dir, fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","dataDir":%q,%s}}`, dir, ipam)}
}

func (l *leaser) args(id string) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: id, IfName: "eth0", StdinData: []byte(l.conf)}
}

func (l *leaser) lease(id string) (string, error) {
	l.t.Helper()
	r, err := hostLocalLease(l.args(id))
	if err != nil {
		return "", err
	}
	return addrsOf(r), nil
}

func addrsOf(r *result.Result) string {
	var all []string
	for _, ip := range r.IPs {
		all = append(all, ip.Address.String())
	}
	return strings.Join(all, " ")
}

func (l *leaser) want(id, addrs string) {
	l.t.Helper()
	got, err := l.lease(id)
	if err != nil || got != addrs {
		l.t.Errorf("%s: %s, %v; want %s", id, got, err, addrs)
	}
}

func (l *leaser) del(id string) {
	l.t.Helper()
	if err := hostLocalDel(l.t.Context(), l.args(id)); err != nil {
		l.t.Error(err)
	}
}

func TestAddressesRestAfterUse(t *testing.T) {
	l := newLeaser(t, `"subnet":"10.1.2.0/24","rangeStart":"10.1.2.1","rangeEnd":"10.1.2.4"`)
	l.want("a", "10.1.2.2/24") // the first is the gateway
	l.want("b", "10.1.2.3/24")
	l.del("a")
	l.want("c", "10.1.2.4/24")
	l.want("d", "10.1.2.2/24")
	_, err := l.lease("e")
	if err == nil || !strings.Contains(err.Error(), "no IP addresses available in range set: 10.1.2.1-10.1.2.4; 3 are leased in "+filepath.Join(l.dir, "net")) {
		t.Errorf("got %v", err)
	}
	l.del("b")
	l.want("e", "10.1.2.3/24")
	if _, err := l.lease("e"); err == nil || !strings.Contains(err.Error(), "10.1.2.3 has been allocated to e, duplicate allocation is not allowed") {
		t.Errorf("twice: %v", err)
	}
	if err := hostLocalCheck(t.Context(), l.args("e")); err != nil {
		t.Errorf("the failed ADD took the address of the container that has it: %v", err)
	}
}

func TestOneAddressOfEachSet(t *testing.T) {
	l := newLeaser(t, `"ranges":[[{"subnet":"10.1.2.0/30"},{"subnet":"10.1.3.0/30"}],[{"subnet":"fd00::/64","rangeStart":"fd00::10"}]]`)
	l.want("a", "10.1.2.2/30 fd00::10/64")
	l.want("b", "10.1.3.2/30 fd00::11/64") // the first range is used up
	if got, err := l.lease("c"); err == nil {
		t.Errorf("a third one: %s", got)
	}
	l.del("a")
	l.want("c", "10.1.2.2/30 fd00::12/64")
	l = newLeaser(t, `"ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"10.1.2.0/30"}]]`)
	l.want("a", "fd00::2/64 10.1.2.2/30")
	if _, err := l.lease("b"); err == nil {
		t.Error("there is no IPv4 address for b")
	}
	if held := openLeaser(t, l).leasesOf(owner{"b", "eth0"}); len(held) != 0 {
		t.Errorf("the failed ADD keeps %v", held)
	}
}

func TestRequestedAddresses(t *testing.T) {
	l := newLeaser(t, `"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"fd00::/64"}]]`)
	ask := func(id, env, config string) (string, error) {
		args := l.args(id)
		args.Args = env
		args.StdinData = []byte(strings.TrimSuffix(l.conf, "}") + config + "}")
		r, err := hostLocalLease(args)
		if err != nil {
			return "", err
		}
		return addrsOf(r), nil
	}
	for i, c := range []struct{ env, config, want string }{
		{"IgnoreUnknown=1;IP=10.1.2.50", "", "10.1.2.50/24 fd00::2/64"},
		{"", `,"runtimeConfig":{"ips":["10.1.2.51/24","fd00::51"]}`, "10.1.2.51/24 fd00::51/64"},
		{"", `,"args":{"cni":{"ips":["10.1.2.52","fd00::52"]}}`, "10.1.2.52/24 fd00::52/64"},
		{"", `,"runtimeConfig":{"ips":["10.1.2.1"]}`, "requested ip 10.1.2.1 is subnet's gateway"},
		{"", `,"runtimeConfig":{"ips":["192.0.2.1"]}`, "192.0.2.1 is not in any range of the network"},
		{"", `,"runtimeConfig":{"ips":["x"]}`, `requested IP "x"`},
	} {
		got, err := ask(fmt.Sprint("w", i), c.env, c.config)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s%s: %s, want %s", c.env, c.config, got, c.want)
		}
	}
	if _, err := ask("x", "IP=10.1.2.50", ""); err == nil || !strings.Contains(err.Error(), "requested IP address 10.1.2.50 is not available in range set 10.1.2.1-10.1.2.254: container w0 has it") {
		t.Errorf("a taken address: %v", err)
	}
	if held := openLeaser(t, l).leasesOf(owner{"x", "eth0"}); len(held) != 0 {
		t.Errorf("a failed ADD keeps %v", held)
	}
}

func openLeaser(t *testing.T, l *leaser) *store {
	t.Helper()
	s, err := openStore(l.dir, "net")
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	return s
}

// TestUpstreamsFiles: what upstream's host-local has leased stays leased until DEL.
func TestUpstreamsFiles(t *testing.T) {
	l := newLeaser(t, `"subnet":"10.1.2.0/29"`)
	dir := filepath.Join(l.dir, "net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string]string{"10.1.2.2": "old\r\neth0", "10.1.2.3": "veryold", "last_reserved_ip.0": "10.1.2.3", "lock": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.want("a", "10.1.2.4/29")
	if doc, err := os.ReadFile(filepath.Join(dir, "10.1.2.4")); err != nil || string(doc) != "a\r\neth0" {
		t.Errorf("%q, %v", doc, err)
	}
	l.del("old")
	l.del("veryold")
	l.want("b", "10.1.2.5/29")
	l.want("c", "10.1.2.6/29")
	l.want("d", "10.1.2.2/29")
	l.want("e", "10.1.2.3/29")
}

// TestCorruptLeases: a file without an owner is from a crash that no container outlived.
func TestCorruptLeases(t *testing.T) {
	l := newLeaser(t, `"subnet":"10.1.2.0/30"`)
	dir := filepath.Join(l.dir, "net")
	for i, doc := range []string{"", "\x00\x00\x00\x00", "../../etc\r\neth0", "{json}"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, doc := range map[string]string{"10.1.2.2": doc, ".new": "half", "last_reserved_ip.0": "rubbish"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(doc), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		id := fmt.Sprint("c", i)
		l.want(id, "10.1.2.2/30")
		l.del(id)
	}
	if err := os.WriteFile(filepath.Join(dir, "10.1.2.2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gc := l.args("")
	gc.StdinData = []byte(strings.TrimSuffix(l.conf, "}") + `,"cni.dev/valid-attachments":[]}`)
	if err := hostLocalGC(t.Context(), gc); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "10.1.2.2")); err == nil {
		t.Error("GC left a lease without an owner")
	}
}

func TestResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("# c\nnameserver 192.0.2.1\nnameserver 192.0.2.2\ndomain d\nsearch a b\noptions ndots:2\nsortlist\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLeaser(t, fmt.Sprintf(`"subnet":"10.1.2.0/24","resolvConf":%q,"routes":[{"dst":"10.0.0.0/8","gw":"10.1.2.9","priority":7}]`, path))
	r, err := hostLocalLease(l.args("a"))
	want := types.DNS{Nameservers: []string{"192.0.2.1", "192.0.2.2"}, Domain: "d", Search: []string{"a", "b"}, Options: []string{"ndots:2"}}
	if err != nil || fmt.Sprint(r.DNS) != fmt.Sprint(want) || len(r.Routes) != 1 || r.Routes[0].Priority != 7 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRangesAreChecked(t *testing.T) {
	for want, ranges := range map[string]string{
		"the network address is 10.1.2.0":       `[[{"subnet":"10.1.2.3/24"}]]`,
		"too small to allocate from":            `[[{"subnet":"10.1.2.0/31"}]]`,
		"RangeStart 10.1.3.1 not in network":    `[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.3.1"}]]`,
		"RangeEnd 10.1.2.1 is before":           `[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.9","rangeEnd":"10.1.2.1"}]]`,
		"mixed address families":                `[[{"subnet":"10.1.2.0/24"},{"subnet":"fd00::/64"}]]`,
		"range set 0 overlaps with 1":           `[[{"subnet":"10.1.2.0/24"}],[{"subnet":"10.1.0.0/16"}]]`,
		"invalid range set 0: subnets":          `[[{"subnet":"10.1.2.0/24"},{"subnet":"10.1.2.0/25"}]]`,
		"invalid range set 0: empty range set":  `[[]]`,
		"invalid range set 0: subnet":           `[[{"subnet":"x"}]]`,
		"invalid range set 0: gateway":          `[[{"subnet":"10.1.2.0/24","gateway":"x"}]]`,
		"unsupported field ipam.ranges.subnets": `[[{"subnets":"x"}]]`,
	} {
		l := newLeaser(t, `"ranges":`+ranges)
		if _, err := l.lease("a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", ranges, err, want)
		}
	}
}

func FuzzLeaseFile(f *testing.F) {
	for _, s := range []string{"a\r\neth0", "a", "", "\x00", "a\neth0\nmore", " \r\n "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		o, ok := parseLease(doc)
		if ok && (o.id == "" || strings.ContainsAny(o.id, "/\n\x00 ")) {
			t.Errorf("owner %q of %q", o, doc)
		}
	})
}

// FuzzConfiguration: every plugin copes with any configuration; accepted ranges give addresses
// within them.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"n","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.3"}],[{"subnet":"fd00::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`))
	f.Add([]byte(`{"name":"n","bridge":"b","isGateway":true,"vlan":3,"runtimeConfig":{"mac":"02:00:00:00:00:01","ips":["1.2.3.4"]},"ipam":{"subnet":"::/0"}}`))
	f.Add([]byte(`{"name":"n","snat":false,"conditionsV4":["a"],"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"UDP","hostIP":"::"}]},"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"1.2.3.4/8"}]}}`))
	f.Fuzz(func(_ *testing.T, doc []byte) {
		_, _ = readBridge(&skel.CmdArgs{StdinData: doc})
		_, _ = readCommon(doc)
		if c, err := readPortmap(doc); err == nil {
			if r, err := previous(&c.PluginConf); err == nil && r != nil {
				_ = c.elements("t", c.addrs(&skel.CmdArgs{IfName: "eth0"}, r), nil).script(true)
			}
		}
		c, err := readHostLocal(doc, "")
		if err != nil {
			return
		}
		for _, set := range c.ranges {
			n := 0
			set.each(netip.Addr{}, func(a netip.Addr, r *ipRange) bool {
				if set.find(a) == nil || !r.contains(a) {
					panic(fmt.Sprintf("%s is not in %s", a, set))
				}
				n++
				return n > 100
			})
		}
	})
}
