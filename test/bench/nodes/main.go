// Nodes measures clusters of several machines, which are network namespaces of this one: how soon a node is of use after it
// has joined, how soon a pod is reached from another node, how long a server's death is felt, and what the way between
// pods of two nodes costs beside the bare way between their machines. Nothing here passes or fails by time.
//
//	go run ./test/bench/nodes [-rounds 5] [-modes routes,vxlan] [-flannel /path -flannel-cni /path] bin/wherry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"wherry.dev/test/bench/report"
	"wherry.dev/test/cluster"
	"wherry.dev/test/images"
	"wherry.dev/test/panics"
	"wherry.dev/test/program"
)

type options struct {
	wherry, dir, report string
	flannel, flannelCNI string
	modes, phases       string
	rounds, pods        int
	seconds             int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "/var/lib", "where the data lie: by default on the disk where a node has them")
	flag.StringVar(&o.report, "o", "", "write the report as JSON to this file")
	flag.StringVar(&o.modes, "modes", "routes,vxlan", "the networks between nodes, of those that --network-mode takes")
	flag.StringVar(&o.phases, "phases", "join,way,servers", "what is measured")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each measurement")
	flag.IntVar(&o.pods, "pods", 10, "pods that are reached from another node, in each mode")
	flag.IntVar(&o.seconds, "seconds", 3, "how long each measurement of throughput takes")
	flag.StringVar(&o.flannel, "flannel", "", "flannel's daemon, to compare with")
	flag.StringVar(&o.flannelCNI, "flannel-cni", "", "its CNI plugin")
	flag.Parse()
	if flag.NArg() != 1 || (o.flannel == "") != (o.flannelCNI == "") {
		fmt.Fprintln(os.Stderr, "usage: nodes [-flannel PATH -flannel-cni PATH] [flags] WHERRY")
		os.Exit(2)
	}
	program.Main("bench", func(ctx context.Context) error { return run(ctx, flag.Arg(0), o) })
}

func run(ctx context.Context, wherry string, o options) (err error) {
	if o.wherry, err = filepath.Abs(wherry); err != nil {
		return err
	}
	var rows []report.Row
	for phase := range strings.SplitSeq(o.phases, ",") {
		measure, known := map[string]func(context.Context, options) ([]report.Row, error){"join": joins, "way": ways, "servers": failover}[phase]
		if !known {
			return fmt.Errorf("-phases: %q is none of join, way and servers", phase)
		}
		more, err := measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", phase, err)
		}
		rows = append(rows, more...)
	}
	return report.Publish(os.Stdout, rows, o.report)
}

// bench is a cluster, of which the first machines are servers.
type bench struct {
	options
	net    *cluster.Network
	client kubernetes.Interface // of the first server
}

// with makes machines, starts a cluster on the first of them, and takes all away when f is done.
func (o options) with(ctx context.Context, machines, started, servers int, flags []string, f func(*bench) error) (err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	network, err := cluster.New(ctx, dir, o.wherry, machines, 0)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, panics.None(filepath.Join(dir, "*", "data", "log", "wherry.log*")), network.TakeAway(context.WithoutCancel(ctx)))
	}()
	for _, m := range network.Machines {
		if err := addImage(m); err != nil {
			return err
		}
	}
	all := network.Machines
	network.Machines = all[:started]
	err = network.Start(ctx, servers, flags, io.Discard)
	network.Machines = all
	if err != nil {
		return err
	}
	b := &bench{options: o, net: network}
	if b.client, err = network.Machines[0].Client(); err != nil {
		return err
	}
	return f(b)
}

func addImage(m *cluster.Machine) error {
	dir := filepath.Join(m.Data, "images")
	return errors.Join(os.MkdirAll(dir, 0o700), images.SaveBusybox(filepath.Join(dir, "busybox.tar")))
}

func ms(from, to time.Time) float64 { return float64(to.Sub(from).Microseconds()) / 1000 }
