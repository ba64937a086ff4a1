// Api measures API servers over TLS, next to each other: Wherry's with its embedded etcd, and upstream's
// kube-apiserver with an etcd if their paths are given. Both write to disk with fsync. Each round measures
// all of them. Nothing here passes or fails by time.
//
//	go run ./test/bench/api [-kube-apiserver /path -etcd /path] bin/wherry
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"

	"wherry.dev/test/bench/servers"
	"wherry.dev/test/program"
)

type options struct {
	upstream, etcd string
	dir, report    string
	rounds         int
	samples        int // of each latency
	objects        int // written by many clients
	watchers       int
	definitions    int
	phases         []string
}

func main() {
	var o options
	flag.StringVar(&o.upstream, "kube-apiserver", "", "upstream's API server to compare with")
	flag.StringVar(&o.etcd, "etcd", "", "the etcd that it needs")
	flag.StringVar(&o.dir, "dir", "/var/lib", "where the data lie: by default on the disk where a node has them")
	flag.StringVar(&o.report, "o", "", "write the report as JSON to this file")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds; the table has the median of each figure")
	flag.IntVar(&o.samples, "n", 300, "samples of each latency")
	flag.IntVar(&o.objects, "objects", 10000, "objects that 16 clients write, and that are listed")
	flag.IntVar(&o.watchers, "watchers", 1000, "watches at once")
	flag.IntVar(&o.definitions, "definitions", 200, "custom resource definitions at a restart")
	chosen := flag.String("phases", strings.Join(phaseNames(), ","), "what is measured")
	flag.Parse()
	o.phases = strings.Split(*chosen, ",")
	for _, phase := range o.phases {
		if !slices.Contains(phaseNames(), phase) {
			fmt.Fprintf(os.Stderr, "bench: -phases: %q is none of %s\n", phase, strings.Join(phaseNames(), ", "))
			os.Exit(2)
		}
	}
	if flag.NArg() != 1 || (o.upstream == "") != (o.etcd == "") {
		fmt.Fprintln(os.Stderr, "usage: api [-kube-apiserver PATH -etcd PATH] [flags] WHERRY")
		os.Exit(2)
	}
	program.Main("bench", func(ctx context.Context) error { return run(ctx, flag.Arg(0), o) })
}

// figure is one measurement.
type figure struct {
	Name, Target string
	Value        float64
}

// row is one line of the report: the medians over the rounds, of ours and of upstream's.
type row struct {
	Name, Target  string
	Wherry        float64
	KubeAPIServer float64 `json:",omitempty"`
}

func run(ctx context.Context, wherry string, o options) error {
	kinds := []kind{{"wherry apiserver", servers.Wherry(wherry)}}
	if o.upstream != "" {
		kinds = append(kinds, kind{"kube-apiserver", servers.Upstream(o.upstream, o.etcd)})
	}
	of := make([]map[string][]float64, len(kinds))
	var order []figure
	for round := range o.rounds {
		for i, k := range kinds {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.rounds, k.name)
			figures, err := k.measure(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			if of[i] == nil {
				of[i] = map[string][]float64{}
			}
			for _, f := range figures {
				of[i][f.Name] = append(of[i][f.Name], f.Value)
			}
			order = figures
		}
	}
	var rows []row
	for _, f := range order {
		r := row{Name: f.Name, Target: f.Target, Wherry: median(of[0][f.Name])}
		if len(kinds) > 1 {
			r.KubeAPIServer = median(of[1][f.Name])
		}
		rows = append(rows, r)
	}
	return publish(rows, o.report)
}

// median returns the middle value; 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

func publish(rows []row, report string) (err error) {
	t := printers.GetNewTabWriter(os.Stdout)
	lines := []string{"MEASURE\tWHERRY\tKUBE-APISERVER\tRATIO\tTARGET"}
	for _, r := range rows {
		peer, ratio := "", ""
		if r.KubeAPIServer > 0 && r.Wherry > 0 {
			peer, ratio = number(r.KubeAPIServer), fmt.Sprintf("%.2f", r.Wherry/r.KubeAPIServer)
		}
		lines = append(lines, strings.Join([]string{r.Name, number(r.Wherry), peer, ratio, r.Target}, "\t"))
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

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v < 2:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
