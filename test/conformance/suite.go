package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"wherry.dev/test/ginkgo"
	"wherry.dev/test/registries"
)

// exceptions are the specs that do not pass here, and why; docs/conformance.md has them too.
var exceptions = ginkgo.Exceptions{
	"Kubelet when scheduling a read only busybox container should not write to root filesystem": "it wants the error in the words of busybox's shell; the image has bash",
	"PrivilegedPod [NodeConformance] should enable privileged commands":                         "it makes a dummy link; the kernel of the machine it ran on has none",
	"Networking should provider Internet connection for containers using DNS":                   "it connects to google.com; the machine it ran on reaches no other",
	"DNS configMap nameserver":                                  "it changes the ConfigMap of the cluster's CoreDNS; there is none, the node itself answers, and has flags for this",
	"volumeMode should not mount / map unused volumes in a pod": "it looks for the kubelet's folder at /var/lib/kubelet, whatever it is told",
	"should not continue running liveness probes for restartable init containers and restart them while in preStop": "it wants what KEP-4438 does away with: sidecars without liveness probes while a preStop hook runs",
	"ContainerMetrics [LinuxOnly] [NodeConformance] when querying /metrics/cadvisor":                                "it wants counters of block devices for each container, which only CRI's metrics have here",
	"Summary API [NodeConformance] when querying /stats/summary":                                                    "it wants pressure statistics, which cgroup v1 does not have, and systemd's cgroups",
	"Workload [FeatureGate:GenericWorkload]":                                                                        "it wants scheduling.k8s.io/v1alpha2, which 1.37 no longer has; what took its place is off by default, and not served here",
}

// lowersOOM reports whether this machine lets a process lower its oom_score_adj.
func lowersOOM() bool {
	var hdr unix.CapUserHeader
	var data [2]unix.CapUserData
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// batch is how many specs one process of the test program runs.
const batch = 6

// suite runs the test program, several processes in parallel.
type suite struct {
	options
	node *node
	// together has the container of each spec that may need those before it there.
	together map[string]string
}

// apart splits off the specs that must not run beside others.
func apart(names []string) (together, alone []string) {
	for _, n := range names {
		if strings.Contains(n, "[Serial]") || strings.Contains(n, "[Disruptive]") {
			alone = append(alone, n)
		} else {
			together = append(together, n)
		}
	}
	return together, alone
}

// list returns the names of the specs in focus.
func (s *suite) list(ctx context.Context) ([]string, error) {
	report, err := s.process(ctx, "list", "--ginkgo.dry-run", "--ginkgo.focus="+s.focus, "--ginkgo.skip="+s.skip)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, sp := range report.Specs {
		if sp.Type == "It" && sp.State == "passed" {
			names = append(names, sp.Name())
			if s.kubelet { // there are ordered containers among them, and the report does not say which
				s.together[sp.Name()] = strings.Join(sp.Containers, " ")
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no spec matches the focus %q and not the skip %q", s.focus, s.skip)
	}
	return names, nil
}

// batches splits specs into those that run in one process.
func (s *suite) batches(names []string) (out [][]string) {
	for i, name := range names {
		needs := i > 0 && s.together[name] != "" && s.together[name] == s.together[names[i-1]]
		if last := len(out) - 1; last < 0 || len(out[last]) >= batch && !needs {
			out = append(out, []string{name})
		} else {
			out[last] = append(out[last], name)
		}
	}
	return out
}

// run runs specs, some at a time, and adds to the report. The specs of a process that died without a report
// appear in it as aborted: they stop neither the run nor its summary. So do those that an
// interrupted run did not get to; the error says why.
func (s *suite) run(ctx context.Context, all *ginkgo.Report, names []string, procs int) error {
	work := make(chan []string, len(names))
	for _, b := range s.batches(names) {
		work <- b
	}
	close(work)
	var (
		mu sync.Mutex // guards all
		wg sync.WaitGroup
	)
	for i := range procs {
		wg.Go(func() {
			for serial := 0; ctx.Err() == nil; serial++ {
				b, ok := <-work
				if !ok {
					return
				}
				args := []string{}
				for _, n := range b {
					args = append(args, "--ginkgo.focus="+regexp.QuoteMeta(n)+"$")
				}
				report, err := s.process(ctx, fmt.Sprintf("%d-%d-%d", procs, i, serial), args...)
				if err != nil {
					report = aborted(b, err)
				} else {
					report.Specs = append(report.Specs, aborted(unseen(b, report), errors.New("it did not run, although it was asked for")).Specs...)
				}
				mu.Lock()
				all.Specs = append(all.Specs, report.Specs...)
				s.progress(report)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for b := range work {
		all.Specs = append(all.Specs, aborted(b, errors.New("the run ended before its turn")).Specs...)
	}
	return ctx.Err()
}

// aborted returns the report for specs whose process left none.
func aborted(names []string, err error) *ginkgo.Report {
	r := &ginkgo.Report{}
	for _, n := range names {
		sp := ginkgo.Spec{Text: n, Type: "It", State: "aborted"}
		sp.Failure.Message = err.Error()
		r.Specs = append(r.Specs, sp)
	}
	return r
}

// unseen returns the specs that a report does not have.
func unseen(names []string, r *ginkgo.Report) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return slices.ContainsFunc(r.Specs, func(s ginkgo.Spec) bool { return s.Name() == n && s.Ran() })
	})
}

// progress prints failures at once.
func (s *suite) progress(r *ginkgo.Report) {
	for _, sp := range r.Specs {
		if sp.Failed() || sp.Type == "It" && sp.State == "passed" {
			fmt.Printf("%-8s %6.1fs %s\n", sp.State, sp.RunTime.Seconds(), sp.Name())
		}
	}
}

// process runs the test program once. Failed specs are in the report, not in the error.
func (s *suite) process(ctx context.Context, name string, args ...string) (_ *ginkgo.Report, err error) {
	report := filepath.Join(s.node.dir, name+".json")
	log, err := os.Create(filepath.Join(s.logs, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	flags := []string{
		"--non-blocking-taints=node.kubernetes.io/", "--disable-log-dump", "--dump-logs-on-failure=false", "--ginkgo.no-color",
		"--ginkgo.v", "--ginkgo.timeout=1h", "--ginkgo.json-report=" + report,
	}
	dir, env := s.node.dir, registries.WithoutProxies(os.Environ())
	if k := s.node.kubelet; k != nil {
		flags = append(flags, k.flags()...)
		dir, env = k.dir, append(env, "PATH="+filepath.Join(k.dir, "bin")+":"+os.Getenv("PATH"))
	} else {
		flags = append(flags, "--kubeconfig="+s.node.kubeconfig(), "--provider=skeleton",
			"--kubelet-root-dir="+filepath.Join(s.node.data(), "kubelet"))
	}
	cmd := s.node.program(ctx, s.e2e, slices.Concat(flags, s.e2eFlags, args)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = io.Writer(log), log
	var failed *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := ginkgo.Read(report)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; its output is in %s", filepath.Base(s.e2e), err, log.Name())
	}
	return r, nil
}
