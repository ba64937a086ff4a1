package kubelet

import (
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// newRotator returns what limits the size of the containers' logs.
func (k *Kubelet) newRotator(pods *podworker.Pods) (*logs.Rotator, error) {
	size, err := resource.ParseQuantity(k.cfg.ContainerLogMaxSize)
	if err != nil {
		return nil, err
	}
	watch, err := k.watchLogs()
	if err != nil {
		return nil, err
	}
	return logs.NewRotator(logs.RotatorConfig{
		Limits:  logs.Limits{MaxSize: size.Value(), MaxFiles: int(ptr.Deref(k.cfg.ContainerLogMaxFiles, 5))},
		Every:   k.cfg.ContainerLogMonitorInterval.Duration,
		Workers: int(ptr.Deref(k.cfg.ContainerLogMaxWorkers, 1)),
	}, k.deps.Runtime, func() []logs.Container { return containerLogs(pods, k.cfg.PodLogsDir) }, watch), nil
}

// containerLogs returns the logs of containers that have started.
func containerLogs(pods *podworker.Pods, root string) []logs.Container {
	var out []logs.Container
	for _, p := range pods.List() {
		dir := criconfig.LogDir(root, p.Pod)
		for i := range p.Input.Containers {
			if c := &p.Input.Containers[i]; c.State == podplan.Running || c.State == podplan.Exited {
				out = append(out, logs.Container{ID: c.ID, Path: filepath.Join(dir, criconfig.LogPath(c.Name, c.Attempt)), Ended: c.State == podplan.Exited})
			}
		}
	}
	return out
}
