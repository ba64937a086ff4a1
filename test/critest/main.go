// Critest runs upstream's CRI validation tests against `wherry cri`. The binary is
// upstream's own, built elsewhere; the images come from a registry on loopback that
// is filled with stand-ins built here, so that nothing leaves the machine.
//
//	go run ./test/critest [-log FILE] bin/wherry /path/to/critest [critest's own flags]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"wherry.dev/test/ginkgo"
	"wherry.dev/test/registries"
)

// exceptions are the specs that cannot pass with any runtime here, and why; docs/conformance.md has
// them too.
var exceptions = ginkgo.Exceptions{
	"public image with digest should be pulled and removed": "the digest is that of upstream's image, whose exact bytes cannot be built here",
}

func main() {
	log := flag.String("log", "", "write critest's own output to this file")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: critest [-log FILE] WHERRY CRITEST [FLAGS]")
		os.Exit(2)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // clean up even if the output is no longer read
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	ok, err := run(ctx, flag.Arg(0), flag.Arg(1), flag.Args()[2:], *log)
	if err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run returns false if a spec failed that should not have.
func run(ctx context.Context, wherry, critest string, args []string, log string) (ok bool, err error) {
	n, err := newNode(ctx, wherry)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, n.close(ctx)) }()
	if wantsBenchmark(args) {
		settings, err := n.benchmarkArgs()
		if err != nil {
			return false, err
		}
		args = append(settings, args...)
	}
	report := filepath.Join(n.dir, "report.json")
	if err := n.critest(ctx, critest, report, args, log); err != nil {
		return false, err
	}
	specs, err := ginkgo.Read(report)
	if err != nil {
		return false, err
	}
	return specs.Print(os.Stdout, "critest", exceptions), n.printBenchmarks(os.Stdout)
}

// critest runs the specs. Failed ones are in the report, not in the error.
func (n *node) critest(ctx context.Context, path, report string, args []string, log string) (err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	out := io.Writer(io.Discard)
	if log != "" {
		if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
			return err
		}
		f, err := os.Create(log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	cmd := exec.CommandContext(ctx, path, append([]string{
		"-runtime-endpoint=" + n.Endpoint, "-image-endpoint=" + n.Endpoint, "-config=" + os.DevNull,
		"-ginkgo.no-color", "-ginkgo.json-report=" + report,
	}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir, cmd.Env = n.dir, registries.WithoutProxies(os.Environ())
	cmd.Stdout, cmd.Stderr = out, out
	var failed *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
		return err
	}
	return ctx.Err()
}
