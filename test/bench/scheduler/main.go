// Scheduler measures schedulers on many nodes, next to each other: Wherry's, and upstream's if its path is given.
// Both run as processes of their own, for an API server of ours with etcd and fsync. The cases are those of
// upstream's scheduler_perf, with its numbers of nodes and pods. Nodes are objects only, as there. Nothing here
// passes or fails by time.
//
//	go run ./test/bench/scheduler [-kube-scheduler /path] bin/wherry
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"

	"wherry.dev/test/program"
)

type options struct {
	wherry, upstream string
	dir, report      string
	rounds, nodes    int
	only             *regexp.Regexp
}

func main() {
	var o options
	var only string
	flag.StringVar(&o.upstream, "kube-scheduler", "", "upstream's scheduler to compare with")
	flag.StringVar(&o.dir, "dir", "/var/lib", "where the data lie: by default on the disk where a node has them")
	flag.StringVar(&o.report, "o", "", "write the report as JSON to this file")
	flag.IntVar(&o.rounds, "rounds", 1, "rounds; the table has the median of each figure")
	flag.IntVar(&o.nodes, "nodes", 5000, "nodes; the numbers of pods follow")
	flag.StringVar(&only, "cases", ".", "a regular expression of the cases to measure")
	flag.Parse()
	err := error(nil)
	if o.only, err = regexp.Compile(only); err != nil || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: scheduler [-kube-scheduler PATH] [flags] WHERRY", err)
		os.Exit(2)
	}
	o.wherry = flag.Arg(0)
	program.Main("bench", func(ctx context.Context) error { return run(ctx, o) })
}

// figures are the measurements of one scheduler in one case.
type figures struct {
	PodsPerSecond    float64
	BindP50, BindP99 float64 // milliseconds from the request that creates a pod until a watch shows its node
	SchedulerCPU     float64 // milliseconds for each pod
	ServerCPU        float64 // the API server's and etcd's
	Memory           float64 // MiB, of the scheduler
}

// row is one line of the report.
type row struct {
	Case      string
	Threshold float64 // upstream's own, in pods/s
	Wherry    figures
	Upstream  *figures `json:",omitempty"`
}

func run(ctx context.Context, o options) error {
	var rows []row
	for _, c := range cases() {
		if !o.only.MatchString(c.name) {
			continue
		}
		c = c.scaled(o.nodes)
		var ours, theirs []figures
		for round := range o.rounds {
			fmt.Fprintf(os.Stderr, "%s, round %d of %d\n", c.name, round+1, o.rounds)
			f, err := c.measure(ctx, o, scheduler{o.wherry, []string{"scheduler"}})
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			ours = append(ours, f)
			if o.upstream == "" {
				continue
			}
			if f, err = c.measure(ctx, o, scheduler{o.upstream, nil}); err != nil {
				return fmt.Errorf("%s with upstream's: %w", c.name, err)
			}
			theirs = append(theirs, f)
		}
		r := row{Case: c.name, Threshold: c.threshold, Wherry: middle(ours)}
		if len(theirs) > 0 {
			r.Upstream = new(middle(theirs))
		}
		rows = append(rows, r)
	}
	return publish(rows, o.report)
}

// middle returns the round with the median of pods per second.
func middle(all []figures) figures {
	slices.SortFunc(all, func(a, b figures) int { return int(a.PodsPerSecond - b.PodsPerSecond) })
	return all[len(all)/2]
}

func publish(rows []row, report string) error {
	t := printers.GetNewTabWriter(os.Stdout)
	lines := []string{"CASE\tSCHEDULER\tPODS/S\tTHRESHOLD\tBIND P50 (ms)\tP99\tCPU-MS A POD\tOF THE API\tMIB"}
	line := func(r row, name string, f figures) {
		lines = append(lines, fmt.Sprintf("%s\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f", r.Case, name, f.PodsPerSecond, r.Threshold,
			f.BindP50, f.BindP99, f.SchedulerCPU, f.ServerCPU, f.Memory))
	}
	for _, r := range rows {
		line(r, "wherry", r.Wherry)
		if r.Upstream != nil {
			line(r, "kube-scheduler", *r.Upstream)
		}
	}
	if _, err := fmt.Fprintln(t, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if err := t.Flush(); err != nil || report == "" {
		return err
	}
	doc, err := json.MarshalIndent(rows, "", "  ")
	return errors.Join(err, os.WriteFile(report, doc, 0o600))
}
