// Package metrics has the metrics of pods and containers that CRI lists (KEP-2371). They have
// cAdvisor's names and labels, so that dashboards made for cAdvisor work when the kubelet passes them on.
package metrics

import (
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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

// CRI's metrics (KEP-2371) have cAdvisor's names and labels, so that dashboards made for cAdvisor
// work when the kubelet passes them on.

// baseLabels are the labels that every metric has before its own.
var baseLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// Labels are the values of the labels that every metric has.
type Labels struct{ Container, Cgroup, Image, ID, Namespace, Pod string }

func (l Labels) values() []string {
	return []string{l.Container, l.Cgroup, l.Image, l.ID, l.Namespace, l.Pod}
}

// Descriptors lists the metrics that there are. pressure says whether the machine measures that, which
// needs cgroup v2 with PSI.
func Descriptors(pressure bool) []*runtimeapi.MetricDescriptor {
	var all []*runtimeapi.MetricDescriptor
	for _, d := range metricTable {
		if !d.pressure || pressure {
			all = append(all, d.descriptor())
		}
	}
	return all
}

// OfPod returns the metrics of a pod. netDev is /proc/net/dev of its own network, or "" if it has
// none. started is in nanoseconds.
func OfPod(l Labels, started int64, netDev string) []*runtimeapi.Metric {
	in := sample{now: time.Now(), started: started, labels: l.values(), network: parseLinks(netDev)}
	return in.collect(podMetric)
}

// Container is what the metrics of a container are read from.
type Container struct {
	Labels
	PID     int    // of its first process
	Started int64  // ns
	Dir     string // on the file system of its writable layer
	Layer   *runtimeapi.FilesystemUsage
}

// OfContainer measures a container. The error is fs.ErrNotExist if it has exited.
func OfContainer(c Container) ([]*runtimeapi.Metric, error) {
	d, err := cgroup.ReadDetails(c.Cgroup)
	if err != nil {
		return nil, err
	}
	in := sample{Details: d, now: d.Time, started: c.Started, labels: c.values()}
	if in.disk, err = measureDisk(c.Dir, c.Layer); err != nil {
		return nil, err
	}
	if in.processes, err = measureProcesses(d.PIDs, c.PID); err != nil {
		return nil, err
	}
	return in.collect(containerMetric), nil
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

// measureDisk returns the usage of a writable layer, and of the file system that it is on.
func measureDisk(dir string, used *runtimeapi.FilesystemUsage) (*diskSample, error) {
	var fsys unix.Statfs_t
	if err := unix.Statfs(dir, &fsys); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dir, err)
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
		return nil, fmt.Errorf("read the limits of process %d: %w", first, err)
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
