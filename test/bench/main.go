// Bench starts a fresh node and measures what a user waits for: pods one after another, a batch, a
// restart after a kill, a deletion, a warm start, how soon an exit and a probe's answer are
// reported, and what the node costs idle, empty and full. It prints medians; nothing here passes or
// fails by time.
//
//	go run ./test/bench [-o report.json] bin/wherry
//	go run ./test/bench -kubeconfig FILE            applications alone, on any cluster
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/test/bench/applications"
	"wherry.dev/test/bench/report"
	"wherry.dev/test/images"
	"wherry.dev/test/panics"
)

func main() {
	o := options{apps: applications.DefaultOptions(), services: applications.DefaultServiceOptions()}
	flag.StringVar(&o.dir, "dir", "/var/lib", "where the node's data lie: by default where a node has them, for a temporary\nfolder's disk may be another, or full of what was deleted a moment ago")
	flag.StringVar(&o.report, "o", "", "write the report as JSON to this file")
	flag.IntVar(&o.sequence, "seq", 20, "pods one after another")
	flag.IntVar(&o.batch, "batch", 30, "pods at once")
	flag.IntVar(&o.rounds, "rounds", 5, "batches")
	flag.IntVar(&o.kills, "kills", 10, "restarts after a kill, ends, and probes")
	flag.IntVar(&o.crowd, "crowd", 110, "idle pods")
	flag.DurationVar(&o.idle, "idle", 20*time.Second, "how long the idle node is watched")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "measure applications alone, on this cluster")
	flag.IntVar(&o.apps.Jobs, "jobs", o.apps.Jobs, "jobs at once")
	flag.IntVar(&o.services.Many, "services", o.services.Many, "services among which one changes")
	flag.BoolVar(&o.apps.Cron, "cron", o.apps.Cron, "wait for a cron job's minute")
	flag.Parse()
	if o.kubeconfig == "" && flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: bench [flags] WHERRY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := error(nil)
	if o.kubeconfig != "" {
		err = elsewhere(ctx, o)
	} else {
		err = run(ctx, flag.Arg(0), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	report, dir, kubeconfig               string
	sequence, batch, rounds, kills, crowd int
	idle                                  time.Duration
	apps                                  applications.Options
	services                              applications.ServiceOptions
}

func run(ctx context.Context, wherry string, o options) (err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-bench-")
	if err != nil {
		return err
	}
	n, err := newNode(wherry, dir)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, panics.None(filepath.Join(n.data, "log", "wherry.log*")), n.command(context.WithoutCancel(ctx), "down", "--purge"), os.RemoveAll(dir))
	}()
	if err := images.SaveBusybox(filepath.Join(n.data, "images", "busybox.tar")); err != nil {
		return err
	}
	rows, err := n.measure(ctx, o)
	if err != nil {
		return err
	}
	return report.Publish(os.Stdout, rows, o.report)
}

// elsewhere measures applications on a cluster that runs already.
func elsewhere(ctx context.Context, o options) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := applications.Client(cfg)
	if err != nil {
		return err
	}
	rows, err := (&node{client: client}).applications(ctx, o)
	if err != nil {
		return err
	}
	return report.Publish(os.Stdout, rows, o.report)
}

func (n *node) applications(ctx context.Context, o options) ([]report.Row, error) {
	all, err := applications.Measure(ctx, n.client, o.apps)
	if err != nil {
		return nil, fmt.Errorf("applications: %w", err)
	}
	return rowsOf(all), nil
}

// services measures the service proxy beside the node.
func services(ctx context.Context, o options) ([]report.Row, error) {
	all, err := applications.Services(ctx, o.services)
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	return rowsOf(all), nil
}

func rowsOf(all []applications.Samples) (rows []report.Row) {
	for _, s := range all {
		rows = append(rows, report.Of(s.Name, s.Target, s.Values))
	}
	return rows
}

func (n *node) measure(ctx context.Context, o options) ([]report.Row, error) {
	var rows []report.Row
	steps := []func(context.Context, options) ([]report.Row, error){
		n.coldStart, n.warmStart, n.sequence, n.batch, n.kills, n.exits, n.probes, n.applications, services, n.idle, n.crowd,
	}
	for _, step := range steps {
		r, err := step(ctx, o)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}
