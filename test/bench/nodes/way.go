package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/bench/inside"
	"wherry.dev/test/bench/report"
	"wherry.dev/test/flannel"
)

// ways measures each mode's way between pods of two nodes, and flannel's if it is given.
func ways(ctx context.Context, o options) (rows []report.Row, err error) {
	measure := func(mode string) func(*bench) error {
		return func(b *bench) error {
			soon, err := b.soon(ctx, mode)
			if err != nil {
				return err
			}
			fast, err := b.fast(ctx, mode)
			rows = slices.Concat(rows, soon, fast)
			return err
		}
	}
	for mode := range strings.SplitSeq(o.modes, ",") {
		if err := o.with(ctx, 2, 2, 1, []string{"--network-mode", mode}, measure(mode)); err != nil {
			return nil, fmt.Errorf("%s: %w", mode, err)
		}
	}
	if o.flannel == "" {
		return rows, nil
	}
	plugins, err := os.MkdirTemp(o.dir, "wherry-bench-plugins-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(plugins)) }()
	if out, err := exec.CommandContext(ctx, o.wherry, "cni", "install", plugins).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cni install: %w: %s", err, bytes.TrimSpace(out))
	}
	err = o.with(ctx, 2, 1, 1, []string{"--network-mode", "none", "--cni-bin-dir", plugins}, func(b *bench) error {
		if err := b.flannelRuns(ctx, plugins); err != nil {
			return err
		}
		return measure("flannel, vxlan")(b)
	})
	return rows, err
}

// flannelRuns has the second node join, and flannel run on both.
func (b *bench) flannelRuns(ctx context.Context, plugins string) error {
	first, second := b.net.Machines[0], b.net.Machines[1]
	token, err := first.Do(ctx, "token", "create", "--ttl", "1h")
	if err != nil {
		return err
	}
	if _, err := second.Do(ctx, "join", first.Server(), "--token", strings.TrimSpace(token), "--detach", "--node-name", second.Name, "--cni-bin-dir", plugins); err != nil {
		return err
	}
	archive := filepath.Join(plugins, "flannel.tar")
	if err := flannel.SaveImage(archive, b.flannel, b.flannelCNI); err != nil {
		return err
	}
	for _, m := range b.net.Machines {
		if _, err := m.Do(ctx, "image", "import", archive); err != nil {
			return err
		}
	}
	return flannel.Install(ctx, b.client, b.net.Machines, plugins)
}

// soon measures from when a pod is Ready until one of another node reaches it: by its own address, and through a service.
func (b *bench) soon(ctx context.Context, mode string) ([]report.Row, error) {
	from := client("client", b.net.Machines[0])
	if _, _, err := b.runs(ctx, from); err != nil {
		return nil, err
	}
	ns, err := inside.NetNS(from.Name)
	if err != nil {
		return nil, err
	}
	var direct, through []float64
	for i := range b.pods {
		p := server(fmt.Sprintf("server-%d", i), b.net.Machines[1])
		svc, err := b.client.CoreV1().Services(namespace).Create(ctx, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name},
			Spec:       v1.ServiceSpec{Selector: p.Labels, Ports: []v1.ServicePort{{Port: 8080, TargetPort: intstr.Parse(port)}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		// It is Ready when what else its start brings about is over: events, and work on its node.
		p.Spec.Containers[0].ReadinessProbe = &v1.Probe{
			InitialDelaySeconds: 1, PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.Parse(port)}},
		}
		byService := b.reach(ctx, ns, svc.Spec.ClusterIP)
		p, at, err := b.runs(ctx, p)
		if err != nil {
			return nil, err
		}
		byIP := <-b.reach(ctx, ns, p.Status.PodIP)
		service := <-byService
		if err := errors.Join(byIP.Err, service.Err); err != nil {
			return nil, err
		}
		direct, through = append(direct, ms(at, byIP.At)), append(through, ms(at, service.At))
		if err := errors.Join(b.deleted(ctx, p.Name), b.client.CoreV1().Services(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})); err != nil {
			return nil, err
		}
	}
	return []report.Row{
		report.Of(mode+": pod Ready → reached from another node, ms", "≤ 100", direct),
		report.Of(mode+": pod Ready → reached through its service from another node, ms", "≤ 100", through),
	}, b.deleted(ctx, from.Name)
}

// end is one end of a way: a network namespace, and its address there.
type end struct{ ns, ip string }

// fast measures the way between two pods beside the bare way between their machines, in turn.
func (b *bench) fast(ctx context.Context, mode string) ([]report.Row, error) {
	var pods, machines [2]end
	for i, m := range b.net.Machines {
		p, _, err := b.runs(ctx, client("end-"+m.Name, m))
		if err != nil {
			return nil, err
		}
		ns, err := inside.NetNS(p.Name)
		if err != nil {
			return nil, err
		}
		pods[i], machines[i] = end{ns, p.Status.PodIP}, end{m.NetNS, m.Address}
	}
	var bare, through, bareTime, podTime []float64
	for range b.rounds {
		for _, w := range []struct {
			ends   [2]end
			gbits  *[]float64
			micros *[]float64
		}{{machines, &bare, &bareTime}, {pods, &through, &podTime}} {
			gbits, err := throughput(ctx, w.ends, b.seconds)
			if err != nil {
				return nil, err
			}
			micros, err := latency(ctx, w.ends, 10000)
			if err != nil {
				return nil, err
			}
			*w.gbits, *w.micros = append(*w.gbits, gbits), append(*w.micros, micros)
		}
	}
	var more []float64 // beyond the bare way
	for i := range podTime {
		more = append(more, podTime[i]-bareTime[i])
	}
	target := map[string]string{"routes": "≥ 95"}[mode]
	// The best round is what the way can carry: in some, and more often on the bare way, the two ends get into each other's way.
	best, bestBare := slices.Max(through), slices.Max(bare)
	return []report.Row{
		report.Of("the bare way, best, Gbit/s", "", []float64{bestBare}), report.Of(mode+": pod to pod, best, Gbit/s", "", []float64{best}),
		report.Of(mode+": of the bare way, %", target, []float64{100 * best / bestBare}),
		report.Of("the bare way, there and back, µs", "", bareTime), report.Of(mode+": more than that, µs", "≤ 5", more),
	}, nil
}

// throughput returns what one TCP connection carries, in Gbit/s, as iperf3 measures it. Both ends share one CPU, which is then the
// limit: what is measured is what the way costs. With two of them it is chance which one does the kernel's work, and that decides
// about more than half of the result. The congestion control is the kernel's own default, for BBR limits itself.
func throughput(ctx context.Context, ends [2]end, seconds int) (float64, error) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return 0, fmt.Errorf("throughput is measured by iperf3 (Debian's package of that name), or leave the phase out: %w", err)
	}
	in := func(e end, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + e.ns, "iperf3", "-J"}, args...)...)
	}
	s := in(ends[1], "-s", "-1")
	if err := s.Start(); err != nil {
		return 0, err
	}
	ready := <-inside.Probe(ctx, ends[1].ns, time.Millisecond, listens)
	if ready.Err != nil {
		return 0, errors.Join(ready.Err, s.Process.Kill(), s.Wait())
	}
	out, err := in(ends[0], "-c", ends[1].ip, "-t", strconv.Itoa(seconds), "-A", "0,0", "-C", "cubic").Output()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("iperf3: %w: %s", err, bytes.TrimSpace(out)), s.Process.Kill(), s.Wait())
	}
	var r struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	err = errors.Join(json.Unmarshal(out, &r), s.Wait())
	return r.End.Received.Bits / 1e9, err
}

// listens reports whether iperf3's server listens in the namespace of this thread. A connection would be its only one.
func listens() bool {
	for _, table := range []string{"tcp", "tcp6"} {
		doc, err := os.ReadFile("/proc/thread-self/net/" + table)
		if err == nil && bytes.Contains(doc, fmt.Appendf(nil, ":%04X ", 5201)) {
			return true
		}
	}
	return false
}

// latency returns how long a packet takes there and back, on average, in microseconds: from one end to the other one's kernel,
// which answers it.
func latency(ctx context.Context, ends [2]end, n int) (float64, error) {
	out, err := exec.CommandContext(ctx, "nsenter", "--net="+ends[0].ns, "ping", "-q", "-A", "-c", strconv.Itoa(n), ends[1].ip).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("ping (of Debian's iputils-ping): %w: %s", err, bytes.TrimSpace(out))
	}
	_, line, _ := strings.Cut(string(out), "min/avg/max/mdev = ")
	var least, average float64
	if _, err := fmt.Sscanf(line, "%f/%f/", &least, &average); err != nil {
		return 0, fmt.Errorf("ping: %w: %s", err, bytes.TrimSpace(out))
	}
	return average * 1000, nil
}
