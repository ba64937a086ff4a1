// Package stats turns what the kernel counts into CRI's statistics.
package stats

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

// Value returns CRI's form of a number.
func Value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// rateWindow is the shortest time that a CPU rate is averaged over.
const rateWindow = time.Second

// CPURate turns the CPU counter into a rate, measured from one request to the next: nothing is
// measured while nobody asks.
type CPURate struct {
	mu   sync.Mutex
	last cgroup.Stats
	rate *runtimeapi.UInt64Value // nanocores; nil until the second measurement
}

// Usage returns the usage of CPU time, with the rate since an earlier call.
func (r *CPURate) Usage(m cgroup.Stats) *runtimeapi.CpuUsage {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := m.Time.Sub(r.last.Time)
	switch {
	case r.last.Time.IsZero() || m.CPU < r.last.CPU: // the first one, or the cgroup was made again
		r.last, r.rate = m, nil
	case passed >= rateWindow:
		r.rate = Value(uint64(float64(m.CPU-r.last.CPU) / passed.Seconds()))
		r.last = m
	}
	return &runtimeapi.CpuUsage{
		Timestamp: m.Time.UnixNano(), UsageCoreNanoSeconds: Value(uint64(m.CPU.Nanoseconds())), UsageNanoCores: r.rate, Psi: psi(m.CPUPressure),
	}
}

// Memory returns the usage of memory.
func Memory(m cgroup.Stats) *runtimeapi.MemoryUsage {
	u := &runtimeapi.MemoryUsage{
		Timestamp: m.Time.UnixNano(), WorkingSetBytes: Value(m.MemoryWorkingSet), UsageBytes: Value(m.MemoryUsage),
		RssBytes: Value(m.MemoryRSS), PageFaults: Value(m.PageFaults), MajorPageFaults: Value(m.MajorPageFaults),
		Psi: psi(m.MemoryPressure),
	}
	if m.MemoryLimit > 0 {
		u.AvailableBytes = Value(m.MemoryLimit - min(m.MemoryLimit, m.MemoryWorkingSet))
	}
	return u
}

// Swap returns the usage of swap.
func Swap(m cgroup.Stats) *runtimeapi.SwapUsage {
	u := &runtimeapi.SwapUsage{Timestamp: m.Time.UnixNano(), SwapUsageBytes: Value(m.SwapUsage)}
	if m.SwapMax != nil {
		u.SwapAvailableBytes = Value(*m.SwapMax - min(*m.SwapMax, m.SwapUsage))
	}
	return u
}

// IO returns the pressure on input and output.
func IO(m cgroup.Stats) *runtimeapi.IoUsage {
	return &runtimeapi.IoUsage{Timestamp: m.Time.UnixNano(), Psi: psi(m.IOPressure)}
}

func psi(p *cgroup.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	data := func(l cgroup.PressureLine) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{Total: uint64(l.Total.Nanoseconds()), Avg10: l.Avg10, Avg60: l.Avg60, Avg300: l.Avg300}
	}
	return &runtimeapi.PsiStats{Full: data(p.Full), Some: data(p.Some)}
}
