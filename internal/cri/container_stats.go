package cri

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

// ContainerStats returns the usage of one container.
func (s *Server) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := c.stats()
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: st}, nil
}

// ListContainerStats returns the usage of the running containers.
func (s *Server) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	st, err := s.listContainerStats(req.GetFilter())
	return &runtimeapi.ListContainerStatsResponse{Stats: st}, err
}

func (s *Server) listContainerStats(f *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	running := &runtimeapi.ContainerFilter{
		Id: f.GetId(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: f.GetLabelSelector(),
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}
	var out []*runtimeapi.ContainerStats
	for _, sum := range s.listContainers(running) {
		c, err := s.findContainer(sum.GetId())
		if isNotFound(err) {
			continue // removed in the meantime
		}
		if err != nil {
			return nil, err
		}
		st, err := c.stats()
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}

func (c *container) stats() (*runtimeapi.ContainerStats, error) {
	st := &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{
		Id: c.id, Metadata: c.config().GetMetadata(), Labels: c.config().GetLabels(), Annotations: c.config().GetAnnotations(),
	}}
	var err error
	if st.WritableLayer, err = c.layer.get(time.Now(), c.upper()); err != nil {
		return nil, err
	}
	m, err := cgroup.ReadStats(c.rec.Cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil // it has exited
	}
	if err != nil {
		return nil, err
	}
	st.Cpu, st.Memory, st.Swap = c.cpu.usage(m), memoryUsage(m), swapUsage(m)
	st.Io = &runtimeapi.IoUsage{Timestamp: nanos(m.Time), Psi: psi(m.IOPressure)}
	return st, nil
}

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// rateWindow is the shortest time that a CPU rate is averaged over.
const rateWindow = time.Second

// cpuRate turns the CPU counter into a rate, measured from one request to the next: nothing is
// measured while nobody asks.
type cpuRate struct {
	mu   sync.Mutex
	last cgroup.Stats
	rate *runtimeapi.UInt64Value // nanocores; nil until the second measurement
}

func (r *cpuRate) usage(m cgroup.Stats) *runtimeapi.CpuUsage {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := m.Time.Sub(r.last.Time)
	switch {
	case r.last.Time.IsZero() || m.CPU < r.last.CPU: // the first one, or the cgroup was made again
		r.last, r.rate = m, nil
	case passed >= rateWindow:
		r.rate = value(uint64(float64(m.CPU-r.last.CPU) / passed.Seconds()))
		r.last = m
	}
	return &runtimeapi.CpuUsage{
		Timestamp: nanos(m.Time), UsageCoreNanoSeconds: value(uint64(m.CPU.Nanoseconds())), UsageNanoCores: r.rate, Psi: psi(m.CPUPressure),
	}
}

func memoryUsage(m cgroup.Stats) *runtimeapi.MemoryUsage {
	u := &runtimeapi.MemoryUsage{
		Timestamp: nanos(m.Time), WorkingSetBytes: value(m.MemoryWorkingSet), UsageBytes: value(m.MemoryUsage),
		RssBytes: value(m.MemoryRSS), PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorPageFaults),
		Psi: psi(m.MemoryPressure),
	}
	if m.MemoryLimit > 0 {
		u.AvailableBytes = value(m.MemoryLimit - min(m.MemoryLimit, m.MemoryWorkingSet))
	}
	return u
}

func swapUsage(m cgroup.Stats) *runtimeapi.SwapUsage {
	u := &runtimeapi.SwapUsage{Timestamp: nanos(m.Time), SwapUsageBytes: value(m.SwapUsage)}
	if m.SwapMax != nil {
		u.SwapAvailableBytes = value(*m.SwapMax - min(*m.SwapMax, m.SwapUsage))
	}
	return u
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

// diskUsage adds up blocks and inodes below dir, each inode once. Files that disappear while it
// counts are left out.
func diskUsage(dir string) (bytes, inodes uint64, err error) {
	type key struct{ dev, ino uint64 }
	linked := map[key]bool{}
	err = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			var st unix.Stat_t
			if err = unix.Lstat(p, &st); err == nil {
				if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
					k := key{st.Dev, st.Ino}
					if linked[k] {
						return nil
					}
					linked[k] = true
				}
				bytes += uint64(st.Blocks) * 512
				inodes++
				return nil
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return bytes, inodes, err
}
