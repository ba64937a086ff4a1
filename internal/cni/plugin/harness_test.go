package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"wherry.dev/internal/cni/nft"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/netns"
)

// TestMain makes the test program act as the plugins: links with their names lead to it.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	if name := filepath.Base(os.Args[0]); Known(name) {
		os.Exit(Main(name))
	}
	// Package net probes the machine's abilities once, in the namespace it is in at that time: do
	// it here, not in a namespace without loopback.
	if l, err := net.Listen("tcp", "localhost:0"); err == nil {
		_ = l.Close()
	}
	os.Exit(m.Run())
}

// host is a machine to connect containers to: a network namespace of its own.
type host struct {
	t      *testing.T
	ns     string
	bin    string // CNI_PATH
	data   string // folder of host-local
	failAt string // the step at which the plugins die
}

func newNetNS(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return netns.Path(dir, netns.Net)
}

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{t: t, ns: newNetNS(t), bin: t.TempDir(), data: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if err := os.Symlink(self, filepath.Join(h.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	h.in(h.ns, func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() })
	return h
}

func (h *host) in(ns string, fn func() error) {
	h.t.Helper()
	if err := netns.Do(fn, ns); err != nil {
		h.t.Fatal(err)
	}
}

// hostExec lets libcni start plugins on the host.
type hostExec struct {
	invoke.RawExec
	version.PluginDecoder
	h *host
}

func (e *hostExec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) (out []byte, err error) {
	if e.h.failAt != "" {
		env = append(env, failpoint.Env+"="+e.h.failAt)
	}
	nerr := netns.Do(func() error {
		out, err = e.RawExec.ExecPlugin(ctx, path, stdin, env)
		return nil
	}, e.h.ns)
	if nerr != nil {
		return nil, nerr
	}
	return out, err
}

// network is a configured network on the host, used through libcni.
type network struct {
	*libcni.CNIConfig
	h    *host
	list *libcni.NetworkConfigList
}

// network parses a list of plugins; DATA stands for host-local's folder.
func (h *host) network(cniVersion string, plugins ...string) *network {
	h.t.Helper()
	doc := fmt.Sprintf(`{"cniVersion":%q,"name":"testnet","plugins":[%s]}`, cniVersion, strings.Join(plugins, ","))
	list, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(doc, "DATA", h.data)))
	if err != nil {
		h.t.Fatal(err)
	}
	return &network{
		CNIConfig: libcni.NewCNIConfigWithCacheDir([]string{h.bin}, h.t.TempDir(), &hostExec{h: h}), h: h, list: list,
	}
}

var containers int

// container is a namespace with its arguments for libcni.
func (h *host) container(ports ...map[string]any) *libcni.RuntimeConf {
	h.t.Helper()
	containers++
	rt := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("container-%d", containers), NetNS: newNetNS(h.t), IfName: "eth0"}
	if len(ports) > 0 {
		rt.CapabilityArgs = map[string]any{"portMappings": ports}
	}
	return rt
}

func (n *network) add(rt *libcni.RuntimeConf) *result.Result {
	n.h.t.Helper()
	res, err := n.AddNetworkList(n.h.t.Context(), n.list, rt)
	if err != nil {
		n.h.t.Fatal(err)
	}
	r, err := result.NewResultFromResult(res)
	if err != nil {
		n.h.t.Fatal(err)
	}
	return r
}

func (n *network) del(rt *libcni.RuntimeConf) {
	n.h.t.Helper()
	if err := n.DelNetworkList(n.h.t.Context(), n.list, rt); err != nil {
		n.h.t.Fatal(err)
	}
}

// leftovers is everything that containers have on the host.
func (h *host) leftovers() []string {
	h.t.Helper()
	var left []string
	h.in(h.ns, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if strings.HasPrefix(l.Name, "veth") {
				left = append(left, "link "+l.Name)
			}
		}
		if err != nil {
			return err
		}
		out, err := exec.Command("nft", "list", "tables").Output()
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			es, err := nft.Elements(context.WithoutCancel(h.t.Context()), f[1], f[2])
			if err != nil {
				return err
			}
			for _, e := range es {
				left = append(left, fmt.Sprintf("element %s %s %s", e.Set, e.Key, e.Comment))
			}
		}
		return err
	})
	leases, err := filepath.Glob(filepath.Join(h.data, "*", "*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, l := range leases {
		if _, err := netip.ParseAddr(filepath.Base(l)); err == nil {
			left = append(left, "lease "+filepath.Base(l))
		}
	}
	return left
}

func (h *host) wantClean() {
	h.t.Helper()
	if left := h.leftovers(); len(left) > 0 {
		h.t.Errorf("left on the host: %q", left)
	}
}

// raw starts a plugin as a shell would, and returns its answer.
func (h *host) raw(plugin, stdin string, env ...string) (out string, fault types.Error, code int) {
	h.t.Helper()
	var stdout bytes.Buffer
	h.in(h.ns, func() error {
		cmd := exec.CommandContext(h.t.Context(), filepath.Join(h.bin, plugin))
		cmd.Env = append(env, "CNI_PATH="+h.bin, "PATH="+os.Getenv("PATH"))
		cmd.Stdin, cmd.Stdout = strings.NewReader(stdin), &stdout
		err := cmd.Run()
		code = cmd.ProcessState.ExitCode()
		if code > 0 {
			return nil
		}
		return err
	})
	if code > 0 {
		if err := json.Unmarshal(stdout.Bytes(), &fault); err != nil {
			h.t.Errorf("the error is not JSON: %q", stdout.String())
		}
	}
	return stdout.String(), fault, code
}

// serve answers with the name and the caller's address, over tcp and udp.
func (h *host) serve(ns, port, name string) {
	h.t.Helper()
	var l net.Listener
	var u net.PacketConn
	h.in(ns, func() (err error) {
		if l, err = net.Listen("tcp", ":"+port); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", ":"+port)
		return err
	})
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr())
			_ = c.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 100)
		for {
			_, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte(name+" "+from.String()+"\n"), from)
		}
	}()
	h.t.Cleanup(func() { _ = l.Close(); _ = u.Close(); <-done; <-done })
}

// How long to try a connection: one that must succeed, and one that must fail, where hearing
// nothing may be the only sign.
const (
	patience = time.Minute
	moment   = 2 * time.Second
)

// call connects and returns the answer: the server's name and our address as it sees it.
func (h *host) call(ns, proto, addr string, within time.Duration) (line string, err error) {
	h.t.Helper()
	err = netns.Do(func() error {
		c, err := net.DialTimeout(proto, addr, within)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		if proto == "udp" {
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
		}
		line, err = bufio.NewReader(c).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s closed the connection", addr)
		}
		return err
	}, ns)
	return line, err
}

func (h *host) expect(ns, proto, addr, prefix string) string {
	h.t.Helper()
	got, err := h.call(ns, proto, addr, patience)
	if err != nil || !strings.HasPrefix(got, prefix) {
		h.t.Errorf("%s to %s: %q, %v; want %q", proto, addr, got, err, prefix)
	}
	return got
}
