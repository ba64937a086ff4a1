// Differential asks Wherry's scheduler and upstream's about the same pods in the same clusters, and compares what
// they say: which nodes are feasible, how each plugin scores them, and the choice; or why there is none, and who
// would be preempted. The clusters are random; a seed plays one again.
//
// Both schedulers read one API server of ours, each through a tap of its own, which keeps what it writes and lets
// none of it through. So both see the very same pod at the very same time, and neither changes anything. How a node
// was scored comes from their logs. Then the driver itself binds the pod, or drops it, and the cluster goes on.
//
//	go run ./test/differential -kube-scheduler /path [-clusters 20] [-seed 1] bin/wherry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"wherry.dev/test/bench/servers"
	"wherry.dev/test/differential/seeds"
	"wherry.dev/test/program"
)

type options struct {
	wherry, upstream string
	dir              string
	seed             uint64
	clusters, pods   int
	most             int
	groups           bool
}

func main() {
	var o options
	flag.StringVar(&o.upstream, "kube-scheduler", "", "upstream's scheduler")
	flag.StringVar(&o.dir, "dir", "", "where the data lie while it runs; by default where temporary files do")
	flag.Uint64Var(&o.seed, "seed", 1, "the first cluster's seed; each next one's is one higher")
	flag.IntVar(&o.clusters, "clusters", 20, "clusters to play")
	flag.IntVar(&o.pods, "pods", 40, "pods to ask about in each cluster")
	flag.BoolVar(&o.groups, "groups", false, "ask about pod groups, too, with the gates that they need")
	flag.IntVar(&o.most, "differences", 5, "end after so many clusters with a difference")
	flag.Parse()
	if flag.NArg() != 1 || o.upstream == "" {
		fmt.Fprintln(os.Stderr, "usage: differential -kube-scheduler PATH [flags] WHERRY")
		os.Exit(2)
	}
	o.wherry = flag.Arg(0)
	program.Main("differential", func(ctx context.Context) error { return run(ctx, o) })
}

// run starts everything, plays the clusters, and removes everything.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-differential-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := servers.Prepare(dir); err != nil {
		return err
	}
	wherry, err := filepath.Abs(o.wherry)
	if err != nil {
		return err
	}
	// Clusters are made up as a whole: nobody is to add taints, finalizers or priorities.
	flags := []string{"--disable-admission-plugins=TaintNodesByCondition,StorageObjectInUseProtection,PodGroupProtection," +
		"Priority,RuntimeClass,DefaultTolerationSeconds,DefaultStorageClass,PodTopologyLabels"}
	ourGates, theirGates := []string{"scheduler"}, gates
	if o.groups {
		flags = append(flags, "--feature-gates="+groupGates)
		ourGates = append(ourGates, "--feature-gates="+groupGates)
		theirGates += "," + groupGates
	} else {
		delete(kinds, "PodGroup") // it is not served
	}
	api, err := servers.Wherry(wherry, flags...)(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Stop()) }()
	w, err := newWorld(ctx, api.Config)
	if err != nil {
		return err
	}
	ours, err := startScheduler(ctx, dir, api.Config, "wherry", wherry, ourGates...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	theirs, err := startScheduler(ctx, dir, api.Config, "upstream", o.upstream, "--feature-gates="+theirGates)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.stop()) }()
	return (&match{options: o, world: w, ours: ours, theirs: theirs}).play(ctx)
}

// gates are set for upstream's scheduler. OpportunisticBatching takes a node that is left from the pod before, and
// does not look at the others. The operators are alpha in 1.37, and ours has them always.
const gates = "OpportunisticBatching=false,TaintTolerationComparisonOperators=true"

// groupGates are those of pod groups.
const groupGates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"

// match is both schedulers over all clusters.
type match struct {
	options
	world        *world
	ours, theirs *scheduler
	running      []*group // of this cluster, with pods that are bound

	asked, placed, preempting int // pods
	stale                     int // differences that were gone when asked again
}

// play plays all clusters. It returns an error if there was a difference in one of them.
func (m *match) play(ctx context.Context) error {
	start := time.Now()
	played, different, err := seeds.Play(m.seed, m.clusters, m.most, func(seed uint64) (string, error) { return m.cluster(ctx, seed) })
	fmt.Printf("%d clusters, %d with differences; %d pods asked about, %d placed, %d preempting; %s; %d late watches\n",
		played, different, m.asked, m.placed, m.preempting, time.Since(start).Round(time.Second), m.stale)
	if err == nil && different > 0 {
		return errors.New("the schedulers differ")
	}
	return err
}
