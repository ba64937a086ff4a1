package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/test/cluster"
	"wherry.dev/test/registries"
)

// node is `wherry up` with folders of its own and registries on loopback; or a cluster of several machines, made of network
// namespaces.
type node struct {
	wherry, dir string
	registries  *registries.Registries
	started     bool
	network     *cluster.Network // nil for one node
	fleet       *fleet           // nil without hollow nodes
	kubelet     *kubelet         // nil if it is not a process of its own
}

// up starts a node, and the hollow ones beside it, and returns when all are Ready.
func up(ctx context.Context, o options, names []string) (n *node, err error) {
	n = &node{wherry: o.wherry}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close(ctx))
		}
	}()
	images, hosts, err := catalog(names, o.programs)
	if err != nil {
		return n, err
	}
	if n.dir, err = os.MkdirTemp("", "wherry-conformance-"); err != nil {
		return n, err
	}
	if err := os.Chmod(n.dir, 0o711); err != nil { // pods with a user namespace need to search it
		return n, err
	}
	if n.registries, err = registries.Start(ctx, filepath.Join(n.dir, "pki"), hosts, images); err != nil {
		return n, err
	}
	if o.kubelet {
		return n, n.pieces(ctx)
	}
	if o.nodes > 1 {
		return n, n.several(ctx, o)
	}
	n.started = true
	args := []string{"up", "--detach", "--node-name", "conformance"}
	if o.hollowNodes > 0 {
		args = append(args, "--node-labels", corev1.LabelTopologyZone+"="+realZone)
	}
	if err := n.command(ctx, append(args, o.up...)...); err != nil || o.hollowNodes == 0 {
		return n, err
	}
	return n, n.withHollow(ctx, o.hollowNodes)
}

// several starts a cluster of machines.
func (n *node) several(ctx context.Context, o options) (err error) {
	if n.network, err = cluster.New(ctx, n.dir, n.wherry, o.nodes, 0); err != nil {
		return err
	}
	for _, m := range n.network.Machines {
		m.Env = n.registries.Env(os.Environ())
		if err := n.serveRegistries(ctx, m); err != nil {
			return err
		}
	}
	return n.network.Start(ctx, o.servers, o.up, os.Stdout)
}

// serveRegistries has the registries answer on a machine, too.
func (n *node) serveRegistries(ctx context.Context, m *cluster.Machine) error {
	err := n.registries.Also(func(addr string) (l net.Listener, err error) {
		err = netns.Do(func() error {
			l, err = new(net.ListenConfig).Listen(ctx, "tcp", addr)
			return err
		}, m.NetNS)
		return l, err
	})
	if err != nil {
		return fmt.Errorf("registries on %s: %w", m.Name, err)
	}
	return nil
}

// data is the data dir of the first node.
func (n *node) data() string {
	if n.network != nil {
		return n.network.Machines[0].Data
	}
	return filepath.Join(n.dir, "d")
}

// logs are the logs of all nodes, by their name in the folder of the output.
func (n *node) logs() map[string]string {
	const log = "log/wherry.log"
	if n.network == nil {
		return map[string]string{"wherry.log": filepath.Join(n.data(), log)}
	}
	all := map[string]string{}
	if n.kubelet != nil {
		all["kubelet.log"] = n.kubelet.log()
	}
	for _, m := range n.network.Machines {
		if n.kubelet != nil && m == n.kubelet.machine {
			continue
		}
		all["wherry-"+m.Name+".log"] = filepath.Join(m.Data, log)
	}
	return all
}

// program returns a command that reaches the API server and the nodes.
func (n *node) program(ctx context.Context, name string, args ...string) *exec.Cmd {
	if n.kubelet != nil {
		return n.kubelet.machine.Command(ctx, name, args...)
	}
	if n.network != nil {
		return n.network.Machines[0].Command(ctx, name, args...)
	}
	return exec.CommandContext(ctx, name, args...)
}

func (n *node) kubeconfig() string { return filepath.Join(n.data(), "kubeconfig") }
func (n *node) hollowLog() string  { return filepath.Join(n.dir, "hollow.log") }

// environ is the environment of the node's programs.
func (n *node) environ() []string {
	return append(n.registries.Env(os.Environ()), "WHERRY_DATA_DIR="+n.data(), "WHERRY_RUN_DIR="+filepath.Join(n.dir, "r"))
}

func (n *node) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, n.wherry, args...)
	cmd.Env = n.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("wherry %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// install runs a program that installs something on the node; its output is shown.
func (n *node) install(ctx context.Context, program string) error {
	if program == "" {
		return nil
	}
	cmd := n.program(ctx, program)
	cmd.Dir, cmd.Env = n.dir, append(n.environ(), "KUBECONFIG="+n.kubeconfig())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("-install %s: %w", program, err)
	}
	return nil
}

// close takes everything down.
func (n *node) close(ctx context.Context) error {
	if n.dir == "" {
		return nil // it stopped before anything was made
	}
	var errs []error
	if n.fleet != nil {
		errs = append(errs, n.fleet.close())
	}
	if n.kubelet != nil {
		errs = append(errs, n.kubelet.close(context.WithoutCancel(ctx)))
	}
	if n.network != nil {
		errs = append(errs, n.network.TakeAway(context.WithoutCancel(ctx)))
	}
	if n.started {
		errs = append(errs, n.command(context.WithoutCancel(ctx), "down", "--purge"))
	}
	if n.registries != nil {
		errs = append(errs, n.registries.Close())
	}
	return errors.Join(append(errs, mount.RemoveTree(n.dir))...)
}
