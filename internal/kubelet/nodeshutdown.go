package kubelet

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/shutdown"
)

// downs is what the kubelet does when the machine goes down.
type downs struct {
	k *Kubelet
	// static are the static pods that were ended. A cancelled shutdown brings them
	// back; so does the next start, for nothing is recorded against them. Only the
	// shutdown manager's goroutine uses it.
	static map[types.UID]*v1.Pod
}

// awaitShutdown ends pods gracefully before the machine goes down, where the
// configuration gives them time for it.
func (k *Kubelet) awaitShutdown(ctx context.Context) error {
	periods := shutdown.Periods(&k.cfg.KubeletConfiguration)
	if len(periods) == 0 {
		return nil
	}
	m := &shutdown.Manager{Periods: periods, Node: &downs{k: k, static: map[types.UID]*v1.Pod{}}, Dial: k.dialLogind}
	return m.Run(ctx)
}

// Active are the pods that are to be ended.
func (d *downs) Active() []*v1.Pod {
	var out []*v1.Pod
	for _, s := range d.k.table.List() {
		if !s.Absent && s.Plan.Life != podplan.PodTerminated {
			out = append(out, s.Pod)
		}
	}
	return out
}

// End lets a pod of the API server fail. A static pod has nobody that would make it
// anew: it is stopped as if its manifest were gone.
func (d *downs) End(pod *v1.Pod, grace int64) {
	if s, ok := d.k.table.Get(pod.UID); ok && s.Static {
		d.static[pod.UID] = pod
		short := pod.DeepCopy()
		short.Spec.TerminationGracePeriodSeconds = &grace
		d.k.table.Set(short, true)
		d.k.table.Remove(pod.UID, nil)
		return
	}
	d.k.table.Evict(pod.UID, podplan.Ending{
		Since: time.Now(), Reason: shutdown.ReasonTerminated, Message: shutdown.MessageTerminated, Grace: &grace,
		Disruption: v1.PodReasonTerminationByKubelet,
	})
}

// Ended waits until nothing of a pod runs any more.
func (d *downs) Ended(ctx context.Context, pod *v1.Pod) {
	for {
		s, ok := d.k.table.Get(pod.UID)
		if !ok || s.Plan.Life == podplan.PodTerminated {
			return
		}
		select {
		case <-s.Superseded:
		case <-ctx.Done():
			return
		}
	}
}

// ShuttingDown keeps new pods out and makes the node NotReady, or takes that back.
func (d *downs) ShuttingDown(down bool) {
	d.k.goingDown.Store(down)
	what := "cancellation"
	if down {
		what = "event"
		metrics.ShutdownStart.Set(float64(time.Now().Unix()))
		metrics.ShutdownEnd.Set(0)
	}
	d.k.events.Eventf(d.k.node.Ref(), v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown %s", what)
	d.k.node.Trigger()
	if down {
		return
	}
	for uid, pod := range d.static {
		d.k.table.Set(pod, true)
		delete(d.static, uid)
	}
}

// Finished notes when all pods had ended.
func (d *downs) Finished() { metrics.ShutdownEnd.Set(float64(time.Now().Unix())) }
