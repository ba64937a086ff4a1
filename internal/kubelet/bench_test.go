package kubelet

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// BenchmarkIdle110Pods measures the cost of a kubelet with 110 pods that only run: its share of
// a core, and the live heap that the pods added. An iteration is a second:
//
//	go test -run ^$ -bench Idle -benchtime 30x ./internal/kubelet
func BenchmarkIdle110Pods(b *testing.B) {
	w := newWorld(b)
	w.launch()
	empty := heap()
	const pods = 110
	w.crowd(b, pods)
	full := heap()
	before, began := cpuTime(b), time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	used, passed := cpuTime(b)-before, time.Since(began)
	b.ReportMetric(100*used.Seconds()/passed.Seconds(), "%core")
	b.ReportMetric(float64(full-empty)/(1<<20), "MiB/110pods")
	b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
	b.ReportMetric(0, "ns/op")
	w.stop()
}

// BenchmarkWakeAmong measures one wake of a pod (look, plan, status) on a node with few
// and with many pods; the two should cost the same.
func BenchmarkWakeAmong(b *testing.B) {
	for _, pods := range []int{10, 1000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			w := newWorld(b)
			w.cfg.MaxPods = int32(pods)
			w.launch()
			w.crowd(b, pods)
			uid := w.k.table.List()[0].Pod.UID
			b.ReportAllocs()
			for b.Loop() {
				before, _ := w.k.table.Get(uid)
				w.k.table.Wake(uid)
				<-before.Superseded
			}
			b.StopTimer()
			w.stop()
		})
	}
}

// crowd starts that many pods, and returns when they run.
func (w *world) crowd(b *testing.B, pods int) {
	b.Helper()
	for i := range pods {
		p := testPod(fmt.Sprintf("p%d", i))
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{} // any number fits
		w.create(p)
	}
	for began := time.Now(); w.running() < pods; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			b.Fatalf("%d of %d pods run", w.running(), pods)
		}
	}
}

func (w *world) running() int {
	n := 0
	for _, s := range w.k.table.List() {
		if s.Status.Phase == v1.PodRunning {
			n++
		}
	}
	return n
}

// heap returns the size of the live heap, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
