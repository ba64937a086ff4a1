// Hollow measures a cluster of hollow nodes with pods: API server, scheduler, controllers and the nodes, each a process
// of its own. A Deployment comes to be, is rolled, loses nodes that fail and get well again, and others that are
// drained. Nothing here passes or fails by time.
//
//	go run ./test/bench/hollow [-nodes 1000] [-pods 10000] bin/wherry
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/test/bench/servers"
	"wherry.dev/test/program"
)

type options struct {
	wherry, dir, report         string
	nodes, pods, failed, drain  int
	heartbeat                   string
	patience, silence, tolerate time.Duration
	rest                        time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "/var/lib", "where the data lie: by default on the disk where a node has them")
	flag.StringVar(&o.report, "o", "", "write the report as JSON to this file")
	flag.IntVar(&o.nodes, "nodes", 1000, "hollow nodes")
	flag.IntVar(&o.pods, "pods", 10000, "pods of the Deployment")
	flag.IntVar(&o.failed, "fail", 200, "nodes that fail at once")
	flag.IntVar(&o.drain, "drain", 50, "nodes that are drained side by side")
	flag.StringVar(&o.heartbeat, "heartbeat", "10s", "how often nodes renew their leases")
	flag.DurationVar(&o.patience, "patience", 10*time.Minute, "how long a phase may take")
	flag.DurationVar(&o.silence, "silence", 50*time.Second, "how long a node may be silent")
	flag.DurationVar(&o.tolerate, "tolerate", 5*time.Second, "how long pods tolerate that it is")
	flag.DurationVar(&o.rest, "rest", 20*time.Second, "how long to look at the cluster at rest")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: hollow [flags] WHERRY")
		os.Exit(2)
	}
	o.wherry = flag.Arg(0)
	program.Main("bench", func(ctx context.Context) error { return run(ctx, o) })
}

// cluster is what runs, and what is known of it.
type cluster struct {
	options
	dir, kubeconfig string
	client          kubernetes.Interface
	api             *servers.Server
	parts           map[string]servers.Process // but for the API server, by name
	rows            []row
}

// names are those of the processes, in the order of the table.
var names = []string{"apiserver", "scheduler", "controllers", "hollow"}

// row is one phase.
type row struct {
	Phase   string
	Seconds float64
	CPU     map[string]float64 // seconds, by process
	Memory  map[string]float64 // MiB, at the end of the phase
}

// run starts everything, goes through the phases, and removes everything.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-bench-hollow-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.wherry, err = filepath.Abs(o.wherry); err != nil {
		return err
	}
	c := &cluster{options: o, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), parts: map[string]servers.Process{}}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.start(ctx); err != nil {
		return err
	}
	for _, p := range c.phases() {
		if err := c.measure(ctx, p); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", p.name, err), c.publish())
		}
	}
	return c.publish()
}

// start starts the API server, the scheduler and the controllers.
func (c *cluster) start(ctx context.Context) (err error) {
	if err := servers.Prepare(c.dir); err != nil {
		return err
	}
	if c.api, err = servers.Wherry(c.wherry)(ctx, c.dir); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.api.Config); err != nil {
		return err
	}
	if err := servers.WriteKubeconfig(c.kubeconfig, c.api.Config); err != nil {
		return err
	}
	if err := c.startPart(ctx, "scheduler", "scheduler", "--leader-elect=false"); err != nil {
		return err
	}
	return c.startPart(ctx, "controllers", "controller-manager", "--leader-elect=false",
		"--node-monitor-grace-period="+c.silence.String())
}

// startPart starts another process of the cluster.
func (c *cluster) startPart(ctx context.Context, name, command string, args ...string) error {
	dir := filepath.Join(c.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	args = append([]string{command, "--kubeconfig", c.kubeconfig}, args...)
	if command != "hollow" {
		port, err := servers.FreePort()
		if err != nil {
			return err
		}
		args = append(args, "--secure-port", port, "--bind-address", "127.0.0.1")
	}
	p, err := servers.Command(ctx, dir, c.wherry, args...)
	if err != nil {
		return err
	}
	c.parts[name] = p
	return nil
}

func (c *cluster) stop() error {
	var errs []error
	for _, name := range []string{"hollow", "controllers", "scheduler"} {
		if p, ok := c.parts[name]; ok {
			errs = append(errs, p.End())
		}
	}
	if c.api != nil {
		errs = append(errs, c.api.Stop())
	}
	return errors.Join(errs...)
}

// measure goes through a phase.
func (c *cluster) measure(ctx context.Context, p phase) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, fmt.Errorf("it takes longer than %s", c.patience))
	defer cancel()
	before, _, err := c.used()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := p.do(ctx); err != nil {
		return err
	}
	r := row{Phase: p.name, Seconds: time.Since(start).Seconds()}
	if r.CPU, r.Memory, err = c.used(); err != nil {
		return err
	}
	for name := range r.CPU {
		r.CPU[name] -= before[name]
	}
	c.rows = append(c.rows, r)
	fmt.Fprintf(os.Stderr, "%s: %.1f s\n", r.Phase, r.Seconds)
	return nil
}

// used returns what the processes have used so far: seconds of CPU, and the memory that they have now.
func (c *cluster) used() (cpu, memory map[string]float64, err error) {
	cpu, memory = map[string]float64{}, map[string]float64{}
	note := func(name string, p interface {
		CPU() (time.Duration, error)
		Memory() (float64, error)
	}) error {
		d, err := p.CPU()
		if err != nil {
			return err
		}
		cpu[name] = d.Seconds()
		if memory[name], err = p.Memory(); err != nil {
			return fmt.Errorf("%s: %w%s", name, err, c.lastWords(name))
		}
		return nil
	}
	err = note("apiserver", c.api)
	for name, p := range c.parts {
		err = errors.Join(err, note(name, p))
	}
	return cpu, memory, err
}

// lastWords returns the end of what a process has logged.
func (c *cluster) lastWords(name string) string {
	log, err := os.ReadFile(filepath.Join(c.dir, name, filepath.Base(c.wherry)+".log"))
	if err != nil {
		return ""
	}
	return "\n" + string(log[max(0, len(log)-2000):])
}

func (c *cluster) publish() error {
	t := printers.GetNewTabWriter(os.Stdout)
	if _, err := fmt.Fprint(t, "PHASE\tSECONDS"); err != nil {
		return err
	}
	for _, name := range names {
		if _, err := fmt.Fprintf(t, "\t%s: CPU-S\tMIB", name); err != nil {
			return err
		}
	}
	for _, r := range c.rows {
		if _, err := fmt.Fprintf(t, "\n%s\t%.1f", r.Phase, r.Seconds); err != nil {
			return err
		}
		for _, name := range names {
			if _, err := fmt.Fprintf(t, "\t%.1f\t%.0f", r.CPU[name], r.Memory[name]); err != nil {
				return err
			}
		}
	}
	if _, err := fmt.Fprintln(t); err != nil {
		return err
	}
	if err := t.Flush(); err != nil || c.report == "" {
		return err
	}
	doc, err := json.MarshalIndent(c.rows, "", "  ")
	return errors.Join(err, os.WriteFile(c.report, doc, 0o600))
}
