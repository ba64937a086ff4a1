package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/metrics"
)

// ListMetricDescriptors lists the metrics that there are.
func (s *Server) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	pressure := s.host.CgroupV2 && disk.Exists("/proc/pressure/cpu")
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: metrics.Descriptors(pressure)}, nil
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
		if !b.Ready() {
			continue
		}
		m := &runtimeapi.PodSandboxMetrics{PodSandboxId: b.ID}
		var err error
		if m.Metrics, err = b.Metrics(); err != nil {
			if !b.Ready() {
				continue // stopped in the meantime
			}
			return nil, fmt.Errorf("measure sandbox %s: %w", b.ID, err)
		}
		for _, c := range s.containersOf(b.ID) {
			if !c.Running() {
				continue
			}
			values, err := c.Metrics(b)
			if errors.Is(err, fs.ErrNotExist) {
				continue // exited in the meantime
			}
			if err != nil {
				return nil, fmt.Errorf("measure container %s: %w", c.ID, err)
			}
			m.ContainerMetrics = append(m.ContainerMetrics, &runtimeapi.ContainerMetrics{ContainerId: c.ID, Metrics: values})
		}
		out = append(out, m)
	}
	return out, nil
}
