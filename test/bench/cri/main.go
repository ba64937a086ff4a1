// Cri measures container runtimes through their sockets, next to each other: Wherry's, and
// containerd if its path is given. Nothing here passes or fails by time.
//
//	go run ./test/bench/cri [-containerd /usr/bin/containerd] bin/wherry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/cli-runtime/pkg/printers"

	"wherry.dev/test/images"
	"wherry.dev/test/program"
	"wherry.dev/test/runtimes"
)

const (
	image = "wherry.dev/bench:1"
	pause = "wherry.dev/pause:1"
)

type options struct {
	containerd string
	oci        string
	samples    int // of each latency
	pods       int // in the parallel run, and for the memory per pod
	list       int // containers that are listed
}

func main() {
	var o options
	flag.StringVar(&o.containerd, "containerd", "", "containerd to compare with; several separated by commas")
	flag.StringVar(&o.oci, "runtime", "", "OCI runtime that Wherry uses: crun or runc")
	flag.IntVar(&o.samples, "n", 30, "samples of each latency")
	flag.IntVar(&o.pods, "pods", 80, "pods of the parallel run")
	flag.IntVar(&o.list, "list", 500, "containers to list")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: cri [flags] WHERRY")
		os.Exit(2)
	}
	program.Main("bench", func(ctx context.Context) error { return run(ctx, flag.Arg(0), o) })
}

func run(ctx context.Context, wherry string, o options) (err error) {
	dir, err := os.MkdirTemp("", "wherry-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	archives, err := save(dir)
	if err != nil {
		return err
	}
	var columns []column
	measured := func(r *runtimes.Runtime, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "measuring %s\n", r.Name)
		rows, err := newPeer(r).measure(ctx, o)
		columns = append(columns, column{r.Name, rows})
		return errors.Join(err, r.Close(ctx))
	}
	if err := measured(runtimes.Wherry(ctx, runtimes.WherryOptions{Path: wherry, OCI: o.oci, Archives: archives})); err != nil {
		return err
	}
	for _, path := range strings.FieldsFunc(o.containerd, func(r rune) bool { return r == ',' }) {
		if err := measured(runtimes.Containerd(ctx, runtimes.Options{Path: path, Pause: pause, Archives: archives})); err != nil {
			return err
		}
	}
	return printColumns(columns)
}

// save writes the archives of the images.
func save(dir string) ([]string, error) {
	root, err := images.Busybox()
	if err != nil {
		return nil, err
	}
	var paths []string
	for tag, config := range map[string]v1.Config{image: {}, pause: {Entrypoint: []string{"sleep", "infinity"}}} {
		config.Env = []string{"PATH=/bin"}
		img, err := images.New(config, root)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, strings.NewReplacer("/", "-", ":", "-").Replace(tag)+".tar")
		if err := images.Save(path, img, tag); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// row is one measure of one runtime, in the unit of its name. It has no samples if the runtime
// cannot do what was to be measured.
type row struct {
	name    string
	target  string
	more    bool // more is better
	samples []float64
}

func (r row) at(q float64) float64 {
	slices.Sort(r.samples)
	return r.samples[min(len(r.samples)-1, int(q*float64(len(r.samples))))]
}

type column struct {
	name string
	rows []row
}

// printColumns has the first runtime on the left, and next to the others how many times worse they
// are.
func printColumns(columns []column) error {
	t := printers.GetNewTabWriter(os.Stdout)
	head := []string{"P50 (P90)", "TARGET"}
	for _, c := range columns {
		head = append(head, strings.ToUpper(c.name))
		if c.name != columns[0].name {
			head = append(head, "RATIO")
		}
	}
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for i, own := range columns[0].rows {
		cells := []string{own.name, own.target, figures(own)}
		for _, c := range columns[1:] {
			cells = append(cells, figures(c.rows[i]), ratio(own, c.rows[i]))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

func figures(r row) string {
	switch len(r.samples) {
	case 0:
		return "-"
	case 1:
		return fmt.Sprintf("%.2f", r.samples[0])
	}
	return fmt.Sprintf("%.2f (%.2f)", r.at(.5), r.at(.9))
}

func ratio(own, other row) string {
	if len(own.samples) == 0 || len(other.samples) == 0 {
		return "-"
	}
	if own.more {
		own, other = other, own
	}
	return fmt.Sprintf("%.1f", other.at(.5)/own.at(.5))
}
