package prober

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/kubelet/podplan"
)

// serverEnv makes the test binary the server that a benchmark probes, so that the cost of serving
// does not count as the prober's.
const serverEnv = "PROBER_BENCH_SERVER"

func serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	_ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) //nolint:gosec // ends with its parent's stdin
}

// startServer returns the port of a server in another process.
func startServer(b *testing.B) int {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		b.Fatal(err)
	}
	return port
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Benchmark500Probes measures how much of a core it costs to probe 500 containers every second, ten
// times as often as by default.
func Benchmark500Probes(b *testing.B) {
	const targets, seconds = 500, 5
	port := startServer(b)
	get := &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port)}}, PeriodSeconds: 1, TimeoutSeconds: 1}
	for b.Loop() {
		m := New(nil, silent{}, func(types.UID) {}, nil)
		for i := range targets {
			pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", ReadinessProbe: get}}}}
			pod.UID = types.UID(strconv.Itoa(i))
			// Half a period ago on average, so that they are spread as in real life.
			since := time.Now().Add(-time.Hour)
			m.Sync(b.Context(), pod, []string{"127.0.0.1"}, []podplan.ProbeTarget{{ID: pod.Name + strconv.Itoa(i), Name: "c", Since: since}})
		}
		time.Sleep(time.Second) // the first round
		before := cpuTime(b)
		time.Sleep(seconds * time.Second)
		used := cpuTime(b) - before
		b.ReportMetric(100*used.Seconds()/seconds, "%core@1s")
		b.ReportMetric(10*used.Seconds()/seconds, "%core@10s")
		b.ReportMetric(float64(used.Microseconds())/(targets*seconds), "µs/probe")
		for i := range targets {
			m.Remove(types.UID(strconv.Itoa(i)))
		}
		m.Wait()
	}
}

type silent struct{}

func (silent) Eventf(runtime.Object, string, string, string, ...any) {}
