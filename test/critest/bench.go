package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// wantsBenchmark reports whether the arguments ask for critest's own benchmark mode.
func wantsBenchmark(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return strings.TrimLeft(a, "-") == "benchmark" || strings.TrimLeft(a, "-") == "benchmark=true"
	})
}

// benchmarkArgs are the settings without which critest skips its benchmarks.
func (n *node) benchmarkArgs() ([]string, error) {
	doc, err := yaml.Marshal(map[string]int{
		"podsNumber": 50, "containersNumber": 50, "imagesNumber": 10, "podsNumberParallel": 1, "containersNumberParallel": 1, "imagesNumberParallel": 1,
		"podContainerStartBenchmarkTimeoutSeconds": 60, "podBenchmarkTimeoutSeconds": 60, "containerBenchmarkTimeoutSeconds": 60, "imageBenchmarkTimeoutSeconds": 60,
	})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(n.dir, "benchmark.yaml")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		return nil, err
	}
	return []string{"-benchmarking-params-file=" + path, "-benchmarking-output-dir=" + n.dir}, nil
}

// printBenchmarks prints the median and the 90th percentile of every operation.
func (n *node) printBenchmarks(w io.Writer) error {
	files, err := filepath.Glob(filepath.Join(n.dir, "*_benchmark_data.json"))
	if err != nil {
		return err
	}
	for _, f := range files {
		doc, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		var set struct {
			OperationsNames []string
			Datapoints      []struct{ OperationsDurationsNs []time.Duration }
		}
		if err := json.Unmarshal(doc, &set); err != nil {
			return fmt.Errorf("read critest's results: %w", err)
		}
		if len(set.Datapoints) == 0 {
			continue
		}
		for i, name := range set.OperationsNames {
			var all []time.Duration
			for _, p := range set.Datapoints {
				all = append(all, p.OperationsDurationsNs[i])
			}
			slices.Sort(all)
			fmt.Fprintf(w, "%-28s %-20s p50 %8.2f ms  p90 %8.2f ms  (%d)\n", strings.TrimSuffix(filepath.Base(f), "_benchmark_data.json"), name,
				milliseconds(all[len(all)/2]), milliseconds(all[len(all)*9/10]), len(all))
		}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
