package kubelet

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// containerLog is what a running container writes to.
type containerLog struct{ id, path string }

// rotateLogs keeps the logs of running containers from growing without end. Only
// the size tells, and a watch of every write would cost more than a look now and then.
// containerLogMaxWorkers are at work at the same time, never two on one log.
func (k *Kubelet) rotateLogs(ctx context.Context) error {
	size, err := resource.ParseQuantity(k.cfg.ContainerLogMaxSize)
	if err != nil {
		return err
	}
	limits := logs.Limits{MaxSize: size.Value(), MaxFiles: int(ptr.Deref(k.cfg.ContainerLogMaxFiles, 5))}
	queue := workqueue.NewTyped[containerLog]()
	var g errgroup.Group
	for range ptr.Deref(k.cfg.ContainerLogMaxWorkers, 1) {
		g.Go(func() error {
			for {
				l, down := queue.Get()
				if down {
					return nil
				}
				k.rotateLog(ctx, l, limits)
				queue.Done(l)
			}
		})
	}
	for ctx.Err() == nil {
		sleep(ctx, ptr.Deref(k.cfg.ContainerLogMonitorInterval, defaultLogInterval).Duration)
		for _, l := range k.runningLogs() {
			queue.Add(l)
		}
	}
	queue.ShutDown()
	return g.Wait()
}

func (k *Kubelet) rotateLog(ctx context.Context, l containerLog, limits logs.Limits) {
	if ctx.Err() != nil {
		return // the queue is emptied, and nothing more done
	}
	if _, err := logs.Rotate(ctx, k.deps.Runtime, l.id, l.path, limits, time.Now()); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to rotate log for container", "containerID", l.id, "path", l.path)
	}
}

func (k *Kubelet) runningLogs() []containerLog {
	var out []containerLog
	for _, p := range k.table.List() {
		for i := range p.Input.Containers {
			if c := &p.Input.Containers[i]; c.State == podplan.Running {
				out = append(out, containerLog{c.ID, filepath.Join(podconfig.LogDir(k.cfg.PodLogsDir, p.Pod), podconfig.LogPath(c.Name, c.Attempt))})
			}
		}
	}
	return out
}
