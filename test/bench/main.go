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
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/test/bench/applications"
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

// row is one line of the report; values are in the unit of the name.
type row struct {
	Name    string
	Target  string
	P50     float64
	P90     float64
	P99     float64
	Samples int
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
	return publish(rows, o)
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
	return publish(rows, o)
}

func (n *node) applications(ctx context.Context, o options) ([]row, error) {
	all, err := applications.Measure(ctx, n.client, o.apps)
	if err != nil {
		return nil, fmt.Errorf("applications: %w", err)
	}
	return rowsOf(all), nil
}

// services measures the service proxy beside the node.
func services(ctx context.Context, o options) ([]row, error) {
	all, err := applications.Services(ctx, o.services)
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	return rowsOf(all), nil
}

func rowsOf(all []applications.Samples) (rows []row) {
	for _, s := range all {
		rows = append(rows, of(s.Name, s.Target, s.Values))
	}
	return rows
}

func publish(rows []row, o options) error {
	if err := printRows(rows); err != nil {
		return err
	}
	if o.report == "" {
		return nil
	}
	doc, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.report, doc, 0o600)
}

func (n *node) measure(ctx context.Context, o options) ([]row, error) {
	var rows []row
	steps := []func(context.Context, options) ([]row, error){
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

// of summarises samples in a row.
func of(name, target string, samples []float64) row {
	r := row{Name: name, Target: target, Samples: len(samples)}
	if len(samples) == 0 {
		return r
	}
	slices.Sort(samples)
	at := func(q float64) float64 { return samples[min(len(samples)-1, int(q*float64(len(samples))))] }
	r.P50, r.P90, r.P99 = at(.5), at(.9), at(.99)
	return r
}

func printRows(rows []row) error {
	t := printers.GetNewTabWriter(os.Stdout)
	fmt.Fprintln(t, "MEASURE\tP50\tP90\tP99\tSAMPLES\tTARGET")
	for _, r := range rows {
		cells := []string{r.Name, figure(r.P50), figure(r.P90), figure(r.P99), fmt.Sprint(r.Samples), r.Target}
		if r.Samples == 1 {
			cells[2], cells[3] = "", ""
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

func figure(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	if v < 2 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
