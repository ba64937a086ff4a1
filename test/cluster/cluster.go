// Package cluster makes machines out of network namespaces, for clusters of several nodes on one: each has a link of its own
// to a switch, or to a router behind it, and nothing that it does is seen outside of these namespaces. What they share is the
// kernel, the file system and the cgroups, in which instances of Wherry keep apart anyway.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/internal/netns"
)

// Machines are on 192.168.77.0/24, those behind the router on 192.168.78.0/24. Both have IPv6, too.
const (
	near, far   = "192.168.77", "192.168.78"
	near6, far6 = "fd77:77", "fd77:78"
	gateway     = 254
)

// ServerPort is where servers are reached on their machines.
const ServerPort = 6443

// Network is a switch, a router and the machines that are connected to them.
type Network struct {
	dir      string
	made     []string // folders of namespaces
	lan      string   // the switch's namespace
	router   string
	Machines []*Machine
}

// Machine is one of them.
type Machine struct {
	Name    string
	Address string // IPv4
	Second  string // IPv6
	// NetNS is the path of its network namespace.
	NetNS string
	// Data and Run are folders for an instance of Wherry.
	Data, Run string
	// Env is the environment of Wherry there; nil for this process's.
	Env []string

	wherry string
}

// New makes a network below dir, and n machines on it, the last routed of them behind the router. wherry is the program that
// their instances run. Close it.
func New(ctx context.Context, dir, wherry string, n, routed int) (_ *Network, err error) {
	network := &Network{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, network.Close())
		}
	}()
	if network.lan, err = network.namespace(ctx, "lan"); err != nil {
		return nil, err
	}
	if network.router, err = network.namespace(ctx, "router"); err != nil {
		return nil, err
	}
	steps := []step{
		{network.lan, "link add br0 type bridge"}, {network.lan, "link set br0 up"},
		{network.router, "link add name far type bridge"}, {network.router, "link set far up"},
		{network.router, fmt.Sprintf("address add %s.%d/24 dev far", far, gateway)}, {network.router, fmt.Sprintf("address add %s::%d/64 dev far nodad", far6, gateway)},
	}
	if err := run(ctx, steps...); err != nil {
		return nil, err
	}
	if err := network.plug(ctx, network.router, "eth0", network.lan, "br0", "router", near, near6, gateway); err != nil {
		return nil, err
	}
	if err := netns.Do(func() error { return forwarding() }, network.router); err != nil {
		return nil, err
	}
	for i := range n {
		if err := network.add(ctx, wherry, i+1, i >= n-routed); err != nil {
			return nil, err
		}
	}
	return network, nil
}

func forwarding() error {
	return errors.Join(netns.SetSysctl("net.ipv4.ip_forward", "1"), netns.SetSysctl("net.ipv6.conf.all.forwarding", "1"))
}

func (n *Network) namespace(ctx context.Context, name string) (path string, err error) {
	dir := filepath.Join(n.dir, "ns", name)
	n.made = append(n.made, dir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		return "", err
	}
	path = netns.Path(dir, netns.Net)
	return path, run(ctx, step{path, "link set lo up"})
}

// add adds a machine.
func (n *Network) add(ctx context.Context, wherry string, number int, routed bool) error {
	name := fmt.Sprintf("m%d", number)
	path, err := n.namespace(ctx, name)
	if err != nil {
		return err
	}
	m := &Machine{Name: name, NetNS: path, Data: filepath.Join(n.dir, name, "data"), Run: filepath.Join(n.dir, name, "run"), wherry: wherry}
	n.Machines = append(n.Machines, m)
	sw, bridge, v4, v6 := n.lan, "br0", near, near6
	if routed {
		sw, bridge, v4, v6 = n.router, "far", far, far6
	}
	m.Address, m.Second = fmt.Sprintf("%s.%d", v4, number), fmt.Sprintf("%s::%d", v6, number)
	if err := n.plug(ctx, path, "eth0", sw, bridge, name, v4, v6, number); err != nil {
		return err
	}
	steps := []step{{path, fmt.Sprintf("route add default via %s.%d", v4, gateway)}, {path, fmt.Sprintf("-6 route add default via %s::%d", v6, gateway)}}
	if !routed { // the router knows both networks
		steps = append(steps, step{path, fmt.Sprintf("route add %s.0/24 via %s.%d", far, v4, gateway)})
	}
	if err := run(ctx, steps...); err != nil {
		return err
	}
	for _, d := range []string{m.Data, m.Run} {
		if err := os.MkdirAll(d, 0o711); err != nil { // pods with a user namespace need to search them
			return err
		}
	}
	return nil
}

// plug connects a namespace with a bridge in another one, and gives it addresses.
func (n *Network) plug(ctx context.Context, ns, link, sw, bridge, port, v4, v6 string, number int) error {
	// ip wants a process, or a name that is known to everybody, for the other end's namespace; a file descriptor will do.
	f, err := os.Open(ns)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	err = netns.Do(func() error {
		cmd := exec.CommandContext(ctx, "ip", "link", "add", port, "type", "veth", "peer", "name", link, "netns", "/proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{f}
		return output(cmd)
	}, sw)
	if err != nil {
		return err
	}
	return run(ctx, step{sw, fmt.Sprintf("link set %s master %s up", port, bridge)}, step{ns, "link set " + link + " up"},
		step{ns, fmt.Sprintf("address add %s.%d/24 dev %s", v4, number, link)}, step{ns, fmt.Sprintf("address add %s::%d/64 dev %s nodad", v6, number, link)})
}

// step is a call of ip in a namespace.
type step struct{ ns, args string }

func run(ctx context.Context, steps ...step) error {
	for _, s := range steps {
		if err := netns.Do(func() error { return output(exec.CommandContext(ctx, "ip", strings.Fields(s.args)...)) }, s.ns); err != nil {
			return err
		}
	}
	return nil
}

func output(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// IP runs ip(8) on a machine.
func (m *Machine) IP(ctx context.Context, args string) error { return run(ctx, step{m.NetNS, args}) }

// RouterIP runs ip(8) on the router.
func (n *Network) RouterIP(ctx context.Context, args string) error {
	return run(ctx, step{n.router, args})
}

// Command returns a command that runs on the machine.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + m.NetNS, "--", name}, args...)...)
}

// Wherry returns a command of Wherry for the machine's instance.
func (m *Machine) Wherry(ctx context.Context, args ...string) *exec.Cmd {
	cmd := m.Command(ctx, m.wherry, args...)
	env := m.Env
	if env == nil {
		env = os.Environ()
	}
	cmd.Env = append(slices.Clone(env), "WHERRY_DATA_DIR="+m.Data, "WHERRY_RUN_DIR="+m.Run)
	return cmd
}

// Use has the machine run another program from now on.
func (m *Machine) Use(wherry string) { m.wherry = wherry }

// Server is the URL of a server on the machine.
func (m *Machine) Server() string { return fmt.Sprintf("https://%s:%d", m.Address, ServerPort) }

// Dial connects to an address as the machine sees it.
func (m *Machine) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = netns.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	}, m.NetNS)
	return conn, err
}

// Do runs a command of Wherry for the machine's instance, and returns what it prints.
func (m *Machine) Do(ctx context.Context, args ...string) (stdout string, err error) {
	var stderr bytes.Buffer
	cmd := m.Wherry(ctx, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: wherry %s: %w: %s", m.Name, args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), err
}

// Member is an etcd of the cluster, as `wherry etcd member list` tells.
type Member struct {
	ID, Name, Address              string
	Learner, Leader, Self, Answers bool
}

// Members returns the cluster's etcds, as the server on the machine sees them.
func (m *Machine) Members(ctx context.Context) (list []Member, err error) {
	out, err := m.Do(ctx, "etcd", "member", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal([]byte(out), &list)
	return list, err
}

// PID returns the process of the machine's instance.
func (m *Machine) PID() (int, error) {
	doc, err := os.ReadFile(filepath.Join(m.Data, "lock"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(doc)))
}

// Client returns an administrator's client of the server on the machine, without limits.
func (m *Machine) Client() (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.Data, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.Dial, cfg.QPS = m.Dial, -1
	return kubernetes.NewForConfig(cfg)
}

// Start makes a cluster of the machines: the first ones are servers with nodes, as many as servers says, and the others join
// as nodes. up are further flags of servers. It returns when all nodes are Ready; progress goes to say.
func (n *Network) Start(ctx context.Context, servers int, up []string, say io.Writer) error {
	first := n.Machines[0]
	token := func(args ...string) (string, error) {
		out, err := first.Do(ctx, append([]string{"token", "create"}, args...)...)
		return strings.TrimSpace(out), err
	}
	for i, m := range n.Machines {
		args := append([]string{"up", "--detach", "--node-name", m.Name}, up...)
		switch {
		case i == 0:
		case i < servers:
			t, err := token("--server")
			if err != nil {
				return err
			}
			args = append(args, "--join-server", first.Server(), "--token", t)
		default:
			t, err := token("--ttl", "1h")
			if err != nil {
				return err
			}
			args = []string{"join", first.Server(), "--token", t, "--detach", "--node-name", m.Name}
		}
		var trouble bytes.Buffer
		cmd := m.Wherry(ctx, args...)
		cmd.Stdout, cmd.Stderr = say, io.MultiWriter(say, &trouble)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", m.Name, err, bytes.TrimSpace(trouble.Bytes()))
		}
	}
	return nil
}

// TakeAway takes down what runs on the machines, and removes the network.
func (n *Network) TakeAway(ctx context.Context) error {
	errs := make([]error, len(n.Machines))
	var all sync.WaitGroup
	for i, m := range n.Machines {
		all.Go(func() {
			if out, err := m.Wherry(ctx, "down", "--purge").CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("%s: %w: %s", m.Name, err, bytes.TrimSpace(out))
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, n.Close())...)
}

// Close removes the network and the namespaces. What ran on the machines must have been taken down.
func (n *Network) Close() error {
	var errs []error
	for _, dir := range n.made {
		if err := netns.Remove(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
