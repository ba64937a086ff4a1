// Conformance runs upstream's e2e specs against a fresh node. The test program is upstream's own,
// built elsewhere; its images are stand-ins from registries on loopback, except for agnhost (with
// CoreDNS in it), sample-apiserver and etcd, whose programs are upstream's too.
//
//	go run ./test/conformance [flags] bin/wherry /path/to/e2e.test [flags of wherry up]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"wherry.dev/test/ginkgo"
	"wherry.dev/test/panics"
)

// options are the command line.
type options struct {
	wherry, e2e string
	programs    programs
	focus, skip string
	procs       int
	nodes       int
	servers     int
	hollowNodes int
	logs        string
	kubelet     bool     // the test program is e2e_node.test, for a kubelet that is a process of its own
	install     string   // a program that installs what the specs need, a CSI driver say
	e2eFlags    []string // for the test program
	up          []string
}

func main() {
	var o options
	o.programs = programs{}
	for _, p := range upstreams {
		without := "specs that need it are skipped"
		if p.specs == "" {
			without = "specs that need it fail"
		}
		flag.Func(p.name, "upstream's "+p.name+" program; without it "+without, func(path string) error {
			o.programs[p.name] = path
			return nil
		})
	}
	flag.StringVar(&o.focus, "focus", `\[NodeConformance\]`, "specs to run, a regular expression")
	flag.StringVar(&o.skip, "skip", `\[Serial\]|\[Slow\]|\[Disruptive\]|\[Flaky\]|\[Feature:`, "specs to leave out")
	flag.IntVar(&o.procs, "procs", 6, "specs to run side by side")
	flag.IntVar(&o.nodes, "nodes", 1, "nodes; several are made of network namespaces")
	flag.IntVar(&o.servers, "servers", 1, "how many of several nodes are servers, too")
	flag.IntVar(&o.hollowNodes, "hollow-nodes", 0, "hollow nodes beside the real one, over three zones: for specs that look at where pods are put, not into them")
	flag.BoolVar(&o.kubelet, "kubelet", false, "the test program is upstream's e2e_node.test, which stops the kubelet and starts it with other configurations")
	flag.StringVar(&o.logs, "logs", "out/conformance", "folder for the output of the tests and the node's log")
	flag.StringVar(&o.install, "install", "", "program to run when the node is Ready, which installs what the specs need, a CSI driver say; "+
		"it has KUBECONFIG, WHERRY_DATA_DIR and WHERRY_RUN_DIR in its environment")
	flag.Func("e2e-flag", "flag for the test program, such as --storage.testdriver=/path; may be repeated", func(arg string) error {
		o.e2eFlags = append(o.e2eFlags, arg)
		return nil
	})
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: conformance [flags] WHERRY E2E_TEST [flags of wherry up]")
		os.Exit(2)
	}
	o.wherry, o.e2e, o.up = flag.Arg(0), flag.Arg(1), flag.Args()[2:]
	if o.kubelet && (o.nodes > 1 || o.hollowNodes > 0) || o.nodes > 1 && o.hollowNodes > 0 || o.servers < 1 || o.servers > o.nodes {
		fmt.Fprintln(os.Stderr, "conformance: hollow nodes and -kubelet are for one node only, and -servers is between 1 and -nodes")
		os.Exit(2)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // clean up even if the output is no longer read
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run returns false if a spec failed that should not have.
func run(ctx context.Context, o options) (ok bool, err error) {
	for _, p := range []*string{&o.wherry, &o.e2e, &o.logs} {
		if *p, err = filepath.Abs(*p); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return false, err
	}
	images, err := listImages(ctx, o.e2e)
	if err != nil {
		return false, err
	}
	n, err := up(ctx, o, images)
	if err != nil {
		return false, err
	}
	defer func() {
		for name, log := range n.logs() {
			err = errors.Join(err, panics.None(log+"*"), keep(log, filepath.Join(o.logs, name)))
		}
		if n.fleet != nil {
			err = errors.Join(err, panics.None(n.hollowLog()), keep(n.hollowLog(), filepath.Join(o.logs, "hollow.log")))
		}
		err = errors.Join(err, n.close(ctx))
	}()
	if err := n.install(ctx, o.install); err != nil {
		return false, err
	}
	s := suite{options: o, node: n, together: map[string]string{}}
	names, err := s.list(ctx)
	if err != nil {
		return false, err
	}
	names, skipped := o.programs.runnable(names)
	for name, why := range skipped {
		fmt.Printf("SKIP %s: %s\n", name, why)
	}
	together, alone := apart(names)
	fmt.Printf("%d specs, %d at a time, and then %d that must be alone\n", len(together), o.procs, len(alone))
	report := &ginkgo.Report{}
	err = errors.Join(s.run(ctx, report, together, o.procs), s.run(ctx, report, alone, 1))
	if !lowersOOM() {
		exceptions["guaranteed qos - 1 container with resize policy"] = "a container that was restarted is to have an oom_score_adj of -997; the machine it ran on lacks CAP_SYS_RESOURCE"
	}
	return report.Print(os.Stdout, "conformance", exceptions), err
}

// keep copies a file.
func keep(from, to string) error {
	doc, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, doc, 0o600)
}
