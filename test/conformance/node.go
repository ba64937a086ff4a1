package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"wherry.dev/internal/mount"
	"wherry.dev/test/registries"
)

// node is `wherry up` with folders of its own and registries on loopback.
type node struct {
	wherry, dir string
	registries  *registries.Registries
	started     bool
	fleet       *fleet // nil without hollow nodes
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

func (n *node) kubeconfig() string { return filepath.Join(n.dir, "d", "kubeconfig") }
func (n *node) log() string        { return filepath.Join(n.dir, "d", "log", "wherry.log") }
func (n *node) hollowLog() string  { return filepath.Join(n.dir, "hollow.log") }

// environ is the environment of the node's programs.
func (n *node) environ() []string {
	return append(n.registries.Env(os.Environ()), "WHERRY_DATA_DIR="+filepath.Join(n.dir, "d"), "WHERRY_RUN_DIR="+filepath.Join(n.dir, "r"))
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
	cmd := exec.CommandContext(ctx, program)
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
	if n.started {
		errs = append(errs, n.command(context.WithoutCancel(ctx), "down", "--purge"))
	}
	if n.registries != nil {
		errs = append(errs, n.registries.Close())
	}
	return errors.Join(append(errs, mount.RemoveTree(n.dir))...)
}
