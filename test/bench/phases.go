package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/bench/inside"
	"wherry.dev/test/bench/report"
)

func (n *node) coldStart(ctx context.Context, _ options) ([]report.Row, error) {
	took, err := n.up(ctx)
	return []report.Row{report.Of("up, first start → node Ready, ms", "", []float64{took})}, err
}

func (n *node) warmStart(ctx context.Context, _ options) ([]report.Row, error) {
	var samples []float64
	for range 3 {
		n.stop()
		pid, err := n.pid()
		if err != nil {
			return nil, err
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return nil, err
		}
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(5 * time.Millisecond)
		}
		took, err := n.up(ctx)
		if err != nil {
			return nil, err
		}
		samples = append(samples, took)
	}
	return []report.Row{report.Of("up, warm start → node Ready, ms", "≤ 2000", samples)}, nil
}

func (n *node) pid() (int, error) {
	raw, err := os.ReadFile(filepath.Join(n.data, "lock"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

func (n *node) sequence(ctx context.Context, o options) ([]report.Row, error) {
	var running, ready, gone []float64
	cpu, err := n.cpu()
	if err != nil {
		return nil, err
	}
	all, err := machineCPU()
	if err != nil {
		return nil, err
	}
	for i := range o.sequence {
		name := fmt.Sprintf("seq-%d", i)
		start := time.Now()
		if err := n.create(ctx, name); err != nil {
			return nil, err
		}
		if err := n.await(ctx, "ready", []string{name}, func(s *seen) bool { return !s.ready.IsZero() }); err != nil {
			return nil, err
		}
		s := n.of(name)
		running, ready = append(running, ms(start, s.running)), append(ready, ms(start, s.ready))
		g, err := n.remove(ctx, name)
		if err != nil {
			return nil, err
		}
		gone = append(gone, g...)
	}
	after, err := n.cpu()
	if err != nil {
		return nil, err
	}
	allAfter, err := machineCPU()
	if err != nil {
		return nil, err
	}
	return []report.Row{
		report.Of("create → Running, ms", "≤ 60", running),
		report.Of("create → Ready, ms", "", ready),
		report.Of("delete → gone, ms", "≤ 100", gone),
		report.Of("CPU for each pod, start to end, wherry alone, ms", "", []float64{(after - cpu) / float64(o.sequence)}),
		report.Of("CPU for each pod, whole machine but this program, ms", "", []float64{(allAfter - all) / float64(o.sequence)}),
	}, nil
}

func (n *node) batch(ctx context.Context, o options) ([]report.Row, error) {
	var rates []float64
	for round := range o.rounds {
		rate, err := n.atOnce(ctx, fmt.Sprintf("batch-%d", round), o.batch)
		if err != nil {
			return nil, err
		}
		rates = append(rates, rate)
	}
	return []report.Row{report.Of(fmt.Sprintf("%d at once, pods/s", o.batch), "≥ 40", rates)}, nil
}

// atOnce creates pods in parallel, and returns how many start running per second.
func (n *node) atOnce(ctx context.Context, prefix string, count int) (perSecond float64, err error) {
	var names []string
	start := time.Now()
	errs := make(chan error, count)
	for i := range count {
		name := fmt.Sprintf("%s-%d", prefix, i)
		names = append(names, name)
		go func() { errs <- n.create(ctx, name) }()
	}
	for range names {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	if err := n.await(ctx, "running", names, func(s *seen) bool { return !s.running.IsZero() }); err != nil {
		return 0, err
	}
	var last time.Time
	for _, name := range names {
		if t := n.of(name).running; t.After(last) {
			last = t
		}
	}
	_, err = n.remove(ctx, names...)
	return float64(count) / last.Sub(start).Seconds(), err
}

// crowd measures what the daemon costs with as many idle pods as a node may have.
func (n *node) crowd(ctx context.Context, o options) ([]report.Row, error) {
	before, err := n.rss()
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range o.crowd {
		name := fmt.Sprintf("crowd-%d", i)
		names = append(names, name)
		if err := n.create(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := n.await(ctx, "running", names, func(s *seen) bool { return !s.running.IsZero() }); err != nil {
		return nil, err
	}
	title := fmt.Sprintf("idle with %d pods", o.crowd)
	rows, err := n.cost(ctx, title, "", o.idle)
	if err != nil {
		return nil, err
	}
	after, err := n.rss()
	if err != nil {
		return nil, err
	}
	rows = append(rows, report.Of(title+", more RSS than without, MiB", "< 60", []float64{after - before}))
	_, err = n.remove(ctx, names...)
	return rows, err
}

// exits measures containers that nothing restarts, so that a status reports only the exit.
func (n *node) exits(ctx context.Context, o options) ([]report.Row, error) {
	never := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	told, err := n.afterKill(ctx, "exit", o.kills, func(s *seen) time.Time { return s.died }, never)
	return []report.Row{report.Of("container's end → status at the API, ms", "≤ 20", told)}, err
}

func (n *node) kills(ctx context.Context, o options) ([]report.Row, error) {
	restarted, err := n.afterKill(ctx, "kill", o.kills, func(s *seen) time.Time { return s.back })
	return []report.Row{report.Of("kill → running again at the API, ms", "≤ 100", restarted)}, err
}

// afterKill starts pods one after another, kills the process of each, and measures the time until
// then is seen.
func (n *node) afterKill(ctx context.Context, prefix string, count int, then func(*seen) time.Time, change ...func(*v1.Pod)) ([]float64, error) {
	var took []float64
	for i := range count {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if err := n.create(ctx, name, change...); err != nil {
			return nil, err
		}
		if err := n.await(ctx, "ready", []string{name}, func(s *seen) bool { return !s.ready.IsZero() }); err != nil {
			return nil, err
		}
		pid, err := inside.Process(name)
		if err != nil {
			return nil, err
		}
		n.arm(name)
		killed := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return nil, err
		}
		if err := n.await(ctx, "seen after its kill", []string{name}, func(s *seen) bool { return !then(s).IsZero() }); err != nil {
			return nil, err
		}
		end := n.of(name)
		took = append(took, ms(killed, then(&end)))
		if _, err := n.remove(ctx, name); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// probes points readiness probes at this program, which therefore knows when one was answered.
func (n *node) probes(ctx context.Context, o options) ([]report.Row, error) {
	var mu sync.Mutex
	passed := map[string]time.Time{} // by path; a pod is ready from its second probe on
	asked := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !asked[r.URL.Path] {
			asked[r.URL.Path] = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusOK)
		if passed[r.URL.Path].IsZero() {
			passed[r.URL.Path] = time.Now()
		}
	}))
	defer server.Close()
	addr, err := netip.ParseAddrPort(server.Listener.Addr().String())
	if err != nil {
		return nil, err
	}
	var told []float64
	for i := range o.kills {
		name := fmt.Sprintf("probe-%d", i)
		get := &v1.HTTPGetAction{Host: addr.Addr().String(), Port: intstr.FromInt32(int32(addr.Port())), Path: "/" + name}
		if err := n.create(ctx, name, func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: get}}
		}); err != nil {
			return nil, err
		}
		if err := n.await(ctx, "ready", []string{name}, func(s *seen) bool { return !s.ready.IsZero() }); err != nil {
			return nil, err
		}
		mu.Lock()
		told = append(told, ms(passed["/"+name], n.of(name).ready))
		mu.Unlock()
		if _, err := n.remove(ctx, name); err != nil {
			return nil, err
		}
	}
	return []report.Row{report.Of("probe's answer → status at the API, ms", "≤ 10", told)}, nil
}

func (n *node) idle(ctx context.Context, o options) ([]report.Row, error) {
	return n.cost(ctx, "idle", "< 200", o.idle)
}

// cost observes the daemon for a while: memory, and share of a core.
func (n *node) cost(ctx context.Context, name, mostMiB string, d time.Duration) ([]report.Row, error) {
	select { // the last pod's garbage is still being collected
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	before, err := n.cpu()
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := n.cpu()
	if err != nil {
		return nil, err
	}
	rss, err := n.rss()
	if err != nil {
		return nil, err
	}
	return []report.Row{
		report.Of(name+", RSS of wherry, MiB", mostMiB, []float64{rss}),
		report.Of(name+", share of a core, %", "< 1", []float64{(after - before) / float64(d.Milliseconds()) * 100}),
	}, nil
}

// cpu returns the CPU time that the daemon has used, in ms.
func (n *node) cpu() (float64, error) {
	pid, err := n.pid()
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// after the name, which may contain anything: utime and stime are fields 14 and 15
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) * 10, err
}

// machineCPU returns the CPU time used by everything on the machine except this program, in ms: the
// runtime, the monitors and the pods themselves, which leave no process behind to ask.
func machineCPU() (float64, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	// user, nice, system, idle, iowait, irq, softirq: proc(5)
	var used, ticks float64
	fields := strings.Fields(string(raw))
	for i, f := range fields[1:8] {
		if ticks, err = strconv.ParseFloat(f, 64); err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			used += ticks * 10
		}
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0, err
	}
	return used - float64(own.Utime.Nano()+own.Stime.Nano())/1e6, nil
}

func (n *node) rss() (float64, error) {
	pid, err := n.pid()
	if err != nil {
		return 0, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}
