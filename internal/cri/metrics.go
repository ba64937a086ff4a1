package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

// CRI's metrics (KEP-2371) have cAdvisor's names and labels, so that dashboards made for cAdvisor
// work when the kubelet passes them on.

// baseLabels are the labels that every metric has before its own.
var baseLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// ListMetricDescriptors lists the metrics that there are.
func (s *Server) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	resp := &runtimeapi.ListMetricDescriptorsResponse{}
	for _, d := range metricTable {
		if s.counts(d) {
			resp.Descriptors = append(resp.Descriptors, d.descriptor())
		}
	}
	return resp, nil
}

// counts reports whether this machine has the metric: pressure needs cgroup v2 with PSI.
func (s *Server) counts(d metric) bool {
	return !d.pressure || s.host.CgroupV2 && exists("/proc/pressure/cpu")
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

// ListPodSandboxMetrics measures the ready pods and their running containers.
func (s *Server) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	all, err := s.podMetrics()
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: all}, err
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics without a size limit.
func (s *Server) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	all, err := s.podMetrics()
	if err != nil {
		return err
	}
	return inBatches(all, func(b []*runtimeapi.PodSandboxMetrics) error {
		return stream.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: b})
	})
}

func (s *Server) podMetrics() ([]*runtimeapi.PodSandboxMetrics, error) {
	var out []*runtimeapi.PodSandboxMetrics
	for _, b := range s.allSandboxes() {
		if !b.ready() {
			continue
		}
		m := &runtimeapi.PodSandboxMetrics{PodSandboxId: b.id}
		var err error
		if m.Metrics, err = s.sandboxMetrics(b); err != nil {
			if !b.ready() {
				continue // stopped in the meantime
			}
			return nil, fmt.Errorf("measure sandbox %s: %w", b.id, err)
		}
		for _, c := range s.containersOf(b.id) {
			if !c.running() {
				continue
			}
			values, err := s.containerMetrics(b, c)
			if errors.Is(err, fs.ErrNotExist) {
				continue // exited in the meantime
			}
			if err != nil {
				return nil, fmt.Errorf("measure container %s: %w", c.id, err)
			}
			m.ContainerMetrics = append(m.ContainerMetrics, &runtimeapi.ContainerMetrics{ContainerId: c.id, Metrics: values})
		}
		out = append(out, m)
	}
	return out, nil
}

// sample is everything known about a pod or container at one moment.
type sample struct {
	cgroup.Details
	labels []string
	now    time.Time

	network   []link
	started   int64 // ns
	disk      *diskSample
	processes *processSample
}

// link is one interface's line of /proc/net/dev.
type link struct {
	name   string
	rx, tx linkCounters
}

type linkCounters struct{ bytes, packets, errors, drops uint64 }

type diskSample struct {
	device                               string
	used, limit, inodesFree, inodesTotal uint64
}

type processSample struct{ processes, threads, files, sockets, openFiles uint64 }

func (s *Server) sandboxMetrics(b *sandbox) ([]*runtimeapi.Metric, error) {
	m := b.config.GetMetadata()
	parent := s.cgroupParent(b)
	in := sample{now: time.Now(), started: b.rec.CreatedAt, labels: []string{"POD", parent, "", b.id, m.GetNamespace(), m.GetName()}}
	if !b.networks {
		return in.collect(podMetric), nil
	}
	doc, err := b.netDev()
	if err != nil {
		return nil, err
	}
	in.network = parseLinks(doc)
	return in.collect(podMetric), nil
}

func (s *Server) containerMetrics(b *sandbox, c *container) ([]*runtimeapi.Metric, error) {
	d, err := cgroup.ReadDetails(c.rec.Cgroup)
	if err != nil {
		return nil, err
	}
	m := b.config.GetMetadata()
	in := sample{
		Details: d, now: d.Time, started: c.current().StartedAt,
		labels: []string{c.config().GetMetadata().GetName(), c.rec.Cgroup, s.imageSpec(c).GetImage(), c.id, m.GetNamespace(), m.GetName()},
	}
	if in.disk, err = c.measureDisk(); err != nil {
		return nil, err
	}
	if in.processes, err = measureProcesses(d.PIDs, c.current().PID); err != nil {
		return nil, err
	}
	return in.collect(containerMetric), nil
}

// collect evaluates the table of metrics.
func (in *sample) collect(of scope) []*runtimeapi.Metric {
	var out []*runtimeapi.Metric
	for _, d := range metricTable {
		if d.scope != of {
			continue
		}
		d.read(in, func(value uint64, labels ...string) {
			out = append(out, &runtimeapi.Metric{
				Name: d.name, Timestamp: in.now.UnixNano(), MetricType: d.kind,
				LabelValues: slices.Concat(in.labels, labels), Value: &runtimeapi.UInt64Value{Value: value},
			})
		})
	}
	return out
}

// measureDisk measures the writable layer and the file system that it is on.
func (c *container) measureDisk() (*diskSample, error) {
	used, err := c.layer.get(time.Now(), c.upper())
	if err != nil {
		return nil, err
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(c.root, &fsys); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", c.root, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(c.root, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", c.root, err)
	}
	return &diskSample{
		device: deviceName(uint64(unix.Major(st.Dev)), uint64(unix.Minor(st.Dev))),
		used:   used.GetUsedBytes().GetValue(), limit: fsys.Blocks * uint64(fsys.Bsize), inodesFree: fsys.Ffree, inodesTotal: fsys.Files,
	}, nil
}

// deviceName returns the block device's path, or its numbers if it has none.
func deviceName(major, minor uint64) string {
	target, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor))
	if err != nil {
		return fmt.Sprintf("%d:%d", major, minor)
	}
	return "/dev/" + filepath.Base(target)
}

// measureProcesses counts what the processes have open. A process that exits in the meantime is
// not counted.
func measureProcesses(pids []int, first int) (*processSample, error) {
	p := &processSample{}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		threads, err := os.ReadDir(filepath.Join(dir, "task"))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.processes++
		p.threads += uint64(len(threads))
		p.files += uint64(len(fds))
		for _, fd := range fds {
			if target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && strings.HasPrefix(target, "socket:") {
				p.sockets++
			}
		}
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(first, unix.RLIMIT_NOFILE, nil, &limit); err == nil {
		p.openFiles = limit.Cur
	} else if !gone(err) {
		return nil, fmt.Errorf("limits of process %d: %w", first, err)
	}
	return p, nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// parseLinks reads /proc/net/dev (proc(5)): name, then eight counters in, eight out.
func parseLinks(doc string) []link {
	var out []link
	for line := range strings.Lines(doc) {
		name, rest, ok := strings.Cut(line, ":")
		var n [12]uint64
		var skip uint64
		if _, err := fmt.Sscan(rest, &n[0], &n[1], &n[2], &n[3], &skip, &skip, &skip, &skip, &n[4], &n[5], &n[6], &n[7]); !ok || err != nil {
			continue
		}
		if name = strings.TrimSpace(name); name != "lo" {
			out = append(out, link{name, linkCounters{n[0], n[1], n[2], n[3]}, linkCounters{n[4], n[5], n[6], n[7]}})
		}
	}
	return out
}
