package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/netns"
	"wherry.dev/test/bench/inside"
	"wherry.dev/test/bench/report"
)

// ways measures each mode's way between pods of two nodes.
func ways(ctx context.Context, o options) (rows []report.Row, err error) {
	for mode := range strings.SplitSeq(o.modes, ",") {
		err = o.with(ctx, 2, 2, 1, []string{"--network-mode", mode}, func(b *bench) error {
			soon, err := b.soon(ctx, mode)
			if err != nil {
				return err
			}
			fast, err := b.fast(ctx, mode)
			rows = slices.Concat(rows, soon, fast)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
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
	var bare, through, share, bareTime, podTime []float64
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
			micros, err := latency(ctx, w.ends, 20000)
			if err != nil {
				return nil, err
			}
			*w.gbits, *w.micros = append(*w.gbits, gbits), append(*w.micros, micros)
		}
		share = append(share, 100*through[len(through)-1]/bare[len(bare)-1])
	}
	var more []float64 // beyond the bare way
	for i := range podTime {
		more = append(more, podTime[i]-bareTime[i])
	}
	target := map[string]string{"routes": "≥ 95"}[mode]
	return []report.Row{
		report.Of("the bare way, Gbit/s", "", bare), report.Of(mode+": pod to pod, Gbit/s", "", through),
		report.Of(mode+": of the bare way, %", target, share),
		report.Of("the bare way, there and back, µs", "", bareTime), report.Of(mode+": more than that, µs", "≤ 5", more),
	}, nil
}

// throughput returns what one TCP connection carries, in Gbit/s, as iperf3 measures it.
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
	out, err := in(ends[0], "-c", ends[1].ip, "-t", strconv.Itoa(seconds)).Output()
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

// latency returns how long a byte takes there and back, the median of n, in microseconds.
func latency(ctx context.Context, ends [2]end, n int) (float64, error) {
	var l net.Listener
	err := netns.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ends[1].ip, "0"))
		return err
	}, ends[1].ns)
	if err != nil {
		return 0, err
	}
	echoed := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			err = errors.Join(err, c.Close())
		}
		echoed <- err
	}()
	took, err := pingPong(ctx, ends[0].ns, l.Addr().String(), n)
	err = errors.Join(err, l.Close(), <-echoed)
	if err != nil {
		return 0, err
	}
	slices.Sort(took)
	return float64(took[n/2].Nanoseconds()) / 1000, nil
}

func pingPong(ctx context.Context, ns, to string, n int) (took []time.Duration, err error) {
	var c net.Conn
	err = netns.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", to)
		return err
	}, ns)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	buf := []byte{1}
	for range n {
		start := time.Now()
		if _, err := c.Write(buf); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}
