package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"wherry.dev/internal/mount"
	"wherry.dev/test/registries"
	"wherry.dev/test/runtimes"
)

// node is `wherry cri` with registries on loopback.
type node struct {
	*runtimes.Runtime
	registries *registries.Registries
	dir        string // of the registries and of what tests write
}

// newNode starts the node and returns when the socket answers.
func newNode(ctx context.Context, wherry string) (n *node, err error) {
	n = &node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close(ctx))
		}
	}()
	if n.dir, err = os.MkdirTemp("", "wherry-critest-"); err != nil {
		return n, err
	}
	program, err := standin(ctx, n.dir)
	if err != nil {
		return n, err
	}
	all, err := catalog(program)
	if err != nil {
		return n, err
	}
	if n.registries, err = registries.Start(ctx, filepath.Join(n.dir, "pki"), hosts, all); err != nil {
		return n, err
	}
	n.Runtime, err = runtimes.Wherry(ctx, runtimes.WherryOptions{Path: wherry, Env: n.registries.Env(os.Environ())})
	return n, err
}

// close stops the process, removes what it made and stops the registries.
func (n *node) close(ctx context.Context) error {
	var errs []error
	if n.Runtime != nil {
		errs = append(errs, n.Close(ctx))
	}
	if n.registries != nil {
		errs = append(errs, n.registries.Close())
	}
	return errors.Join(append(errs, mount.RemoveTree(n.dir))...)
}
