// Package report summarises what a benchmark measured: a table for people, a file for machines.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"
)

// Row is one line of a report; values are in the unit of the name.
type Row struct {
	Name    string
	Target  string
	P50     float64
	P90     float64
	P99     float64
	Samples int
}

// Of summarises samples in a row.
func Of(name, target string, samples []float64) Row {
	r := Row{Name: name, Target: target, Samples: len(samples)}
	if len(samples) == 0 {
		return r
	}
	samples = slices.Sorted(slices.Values(samples))
	at := func(q float64) float64 { return samples[min(len(samples)-1, int(q*float64(len(samples))))] }
	r.P50, r.P90, r.P99 = at(.5), at(.9), at(.99)
	return r
}

// Publish prints rows as a table to out, and writes them as JSON to a file if there is a path.
func Publish(out io.Writer, rows []Row, path string) error {
	if err := table(out, rows); err != nil || path == "" {
		return err
	}
	doc, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, doc, 0o600)
}

func table(out io.Writer, rows []Row) error {
	t := printers.GetNewTabWriter(out)
	lines := []string{"MEASURE\tP50\tP90\tP99\tSAMPLES\tTARGET"}
	for _, r := range rows {
		cells := []string{r.Name, figure(r.P50), figure(r.P90), figure(r.P99), fmt.Sprint(r.Samples), r.Target}
		if r.Samples == 1 {
			cells[2], cells[3] = "", ""
		}
		lines = append(lines, strings.Join(cells, "\t"))
	}
	if _, err := fmt.Fprintln(t, strings.Join(lines, "\n")); err != nil {
		return err
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
