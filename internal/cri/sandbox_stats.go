package cri

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cni"
	"wherry.dev/internal/netns"
)

// PodSandboxStats returns a pod's usage: of its cgroup, network and containers.
func (s *Server) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	b, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.podStats(b)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: st}, nil
}

// ListPodSandboxStats returns the usage of the pods that are ready.
func (s *Server) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	st, err := s.listPodStats(req.GetFilter())
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: st}, err
}

func (s *Server) listPodStats(f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	filter := &runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()}
	var out []*runtimeapi.PodSandboxStats
	for _, b := range s.allSandboxes() {
		if !b.ready() || !b.matches(filter) {
			continue
		}
		st, err := s.podStats(b)
		if err != nil {
			if !b.ready() {
				continue // stopped in the meantime
			}
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}

func (s *Server) podStats(b *sandbox) (*runtimeapi.PodSandboxStats, error) {
	linux := &runtimeapi.LinuxPodSandboxStats{}
	m, err := cgroup.ReadStats(s.cgroupParent(b))
	switch {
	case errors.Is(err, fs.ErrNotExist): // no container yet
	case err != nil:
		return nil, err
	default:
		linux.Cpu, linux.Memory = b.cpu.usage(m), memoryUsage(m)
		linux.Io = &runtimeapi.IoUsage{Timestamp: nanos(m.Time), Psi: psi(m.IOPressure)}
		linux.Process = &runtimeapi.ProcessUsage{Timestamp: nanos(m.Time), ProcessCount: value(m.Pids)}
	}
	if b.networks && b.ready() {
		if linux.Network, err = b.networkUsage(); err != nil {
			return nil, err
		}
	}
	if linux.Containers, err = s.listContainerStats(&runtimeapi.ContainerStatsFilter{PodSandboxId: b.id}); err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: b.id, Metadata: b.config.GetMetadata(), Labels: b.config.GetLabels(), Annotations: b.config.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}

// netDev returns the kernel's counters of the pod's interfaces.
func (b *sandbox) netDev() (string, error) {
	var doc []byte
	err := netns.Do(func() (err error) {
		doc, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	}, b.netnsPath())
	if err != nil {
		return "", fmt.Errorf("network statistics of sandbox %s: %w", b.id, err)
	}
	return string(doc), nil
}

func (b *sandbox) networkUsage() (*runtimeapi.NetworkUsage, error) {
	doc, err := b.netDev()
	if err != nil {
		return nil, err
	}
	u := &runtimeapi.NetworkUsage{Timestamp: nanos(time.Now())}
	for _, i := range parseNetDev(doc) {
		switch i.GetName() {
		case "lo":
		case cni.IfName:
			u.DefaultInterface = i
		default:
			u.Interfaces = append(u.Interfaces, i)
		}
	}
	return u, nil
}

// parseNetDev reads /proc/net/dev: name, then eight counters in, eight out (proc(5)).
func parseNetDev(doc string) []*runtimeapi.NetworkInterfaceUsage {
	var out []*runtimeapi.NetworkInterfaceUsage
	sc := bufio.NewScanner(strings.NewReader(doc))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 11 {
			continue
		}
		var n [11]uint64
		valid := true
		for i := range n {
			v, err := strconv.ParseUint(f[i], 10, 64)
			valid = valid && err == nil
			n[i] = v
		}
		if valid {
			out = append(out, &runtimeapi.NetworkInterfaceUsage{
				Name: strings.TrimSpace(name), RxBytes: value(n[0]), RxErrors: value(n[2]), TxBytes: value(n[8]), TxErrors: value(n[10]),
			})
		}
	}
	return out
}
