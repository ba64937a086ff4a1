package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/shutdown"
	"wherry.dev/internal/record"
)

// downs is what the kubelet does when the machine shuts down.
type downs struct {
	k    *Kubelet
	log  klog.Logger
	file string
	last lastShutdown
}

// awaitShutdown ends pods gracefully before the machine shuts down, if the configuration gives them
// time for it.
func (k *Kubelet) awaitShutdown(ctx context.Context) error {
	periods := shutdown.Periods(&k.cfg.KubeletConfiguration)
	if len(periods) == 0 {
		return nil
	}
	d := &downs{k: k, log: klog.FromContext(ctx), file: filepath.Join(k.cfg.RootDir, "graceful_node_shutdown_state")}
	d.load()
	m := &shutdown.Manager{Periods: periods, Node: d, Dial: k.dialLogind}
	return m.Run(ctx)
}

// lastShutdown is the file that says, after the machine has booted again, how its last shutdown
// went. Name and fields are upstream's.
type lastShutdown struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
}

// load puts the last shutdown into the metrics.
func (d *downs) load() {
	data, err := os.ReadFile(d.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var last lastShutdown
	if err == nil {
		err = json.Unmarshal(data, &last)
	}
	if err != nil {
		d.log.Error(err, "Failed to load graceful shutdown state")
		return
	}
	d.show(last)
}

func (d *downs) show(last lastShutdown) {
	d.last = last
	for gauge, at := range map[*basemetrics.Gauge]time.Time{metrics.ShutdownStart: last.StartTime, metrics.ShutdownEnd: last.EndTime} {
		if at.IsZero() {
			gauge.Set(0)
			continue
		}
		gauge.Set(float64(at.Unix()))
	}
}

// note records how the shutdown goes. If it fails, pods are ended all the same.
func (d *downs) note(last lastShutdown) {
	d.show(last)
	data, err := json.Marshal(last)
	if err == nil {
		err = record.WriteFile(d.file, data, 0o644)
	}
	if err != nil {
		d.log.Error(err, "Failed to store graceful shutdown state")
	}
}

// Active returns the pods that have to be ended.
func (d *downs) Active() []*v1.Pod {
	var out []*v1.Pod
	for _, s := range d.k.table.List() {
		if !s.Absent && s.Plan.Life != podplan.PodTerminated {
			out = append(out, s.Pod)
		}
	}
	return out
}

// End fails a pod. Nothing recreates a static pod except a canceled shutdown or the next start of
// the kubelet.
func (d *downs) End(pod *v1.Pod, grace int64) {
	d.k.table.Evict(pod.UID, podplan.Ending{
		Since: time.Now(), Reason: shutdown.ReasonTerminated, Message: shutdown.MessageTerminated, Grace: &grace,
		Disruption: v1.PodReasonTerminationByKubelet,
	})
}

// Ended waits until nothing of a pod runs any more.
func (d *downs) Ended(ctx context.Context, pod *v1.Pod) {
	d.k.table.Await(ctx, pod.UID, func(s *podworker.Snapshot) bool { return s.Plan.Life == podplan.PodTerminated })
}

// ShuttingDown keeps new pods out and makes the node NotReady, or takes both back.
func (d *downs) ShuttingDown(ctx context.Context, down bool) {
	d.k.conditions.GoingDown.Store(down)
	what := "cancellation"
	if down {
		what = "event"
		d.note(lastShutdown{StartTime: time.Now()})
	}
	d.k.events.Eventf(d.k.node.Ref(), v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown %s", what)
	d.k.node.Trigger()
	if down {
		return
	}
	for _, s := range d.k.table.List() {
		if e := s.Plan.Record.Ending; s.Static && !s.Absent && e != nil && e.Reason == shutdown.ReasonTerminated {
			d.k.table.Remove(s.Pod.UID, nil)
			d.k.table.Await(ctx, s.Pod.UID, func(now *podworker.Snapshot) bool { return now.Absent })
			d.k.table.Set(s.Pod, true)
		}
	}
}

// Finished records when all pods had ended.
func (d *downs) Finished() {
	d.note(lastShutdown{StartTime: d.last.StartTime, EndTime: time.Now()})
}
