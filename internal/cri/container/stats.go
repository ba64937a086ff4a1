package container

import (
	"errors"
	"io/fs"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/metrics"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/cri/stats"
)

// Stats returns its usage.
func (c *Container) Stats() (*runtimeapi.ContainerStats, error) {
	st := &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{
		Id: c.ID, Metadata: c.Config().GetMetadata(), Labels: c.Config().GetLabels(), Annotations: c.Config().GetAnnotations(),
	}}
	var err error
	if st.WritableLayer, err = c.layer.Get(time.Now(), c.upper()); err != nil {
		return nil, err
	}
	m, err := cgroup.ReadStats(c.rec.Cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil // it has exited
	}
	if err != nil {
		return nil, err
	}
	st.Cpu, st.Memory, st.Swap, st.Io = c.cpu.Usage(m), stats.Memory(m), stats.Swap(m), stats.IO(m)
	return st, nil
}

// Metrics measures it. b is its sandbox. The error is fs.ErrNotExist if it has exited.
func (c *Container) Metrics(b *sandbox.Sandbox) ([]*runtimeapi.Metric, error) {
	layer, err := c.layer.Get(time.Now(), c.upper())
	if err != nil {
		return nil, err
	}
	pod, st := b.Config.GetMetadata(), c.current()
	return metrics.OfContainer(metrics.Container{
		Labels: metrics.Labels{
			Container: c.Config().GetMetadata().GetName(), Cgroup: c.rec.Cgroup, Image: c.imageSpec().GetImage(), ID: c.ID,
			Namespace: pod.GetNamespace(), Pod: pod.GetName(),
		},
		PID: st.PID, Started: st.StartedAt, Dir: c.root, Layer: layer,
	})
}
