package kubelet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
)

// waitRuntime asks the runtime for its version until it answers.
func (k *Kubelet) waitRuntime(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	log := klog.FromContext(ctx)
	wait := 20 * time.Millisecond
	for {
		v, err := k.deps.Runtime.Version(ctx, "v1")
		if err == nil {
			return v, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if wait > time.Second {
			log.Error(err, "Container runtime is not answering yet")
		}
		sleep(ctx, wait)
		wait = min(wait*2, 5*time.Second)
	}
}

// systemd reports whether the runtime creates cgroups through systemd. What the runtime says takes
// precedence over the configuration (KEP-4033).
func (k *Kubelet) systemd(ctx context.Context) bool {
	cfg, err := k.deps.Runtime.RuntimeConfig(ctx)
	if err != nil || cfg.GetLinux() == nil {
		return k.cfg.CgroupDriver == "systemd"
	}
	return cfg.Linux.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// adoptOrphans gives a worker to each pod that the runtime or a record knows. If a source wants the
// pod, it takes it over; other pods are torn down.
func (k *Kubelet) adoptOrphans(ctx context.Context) error {
	var found map[types.UID]*v1.Pod
	for wait := 20 * time.Millisecond; ; wait = min(wait*2, 5*time.Second) {
		var err error
		if found, err = k.runtimePods(ctx); err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		klog.FromContext(ctx).Error(err, "Cannot list the runtime's pods yet")
		sleep(ctx, wait)
	}
	for uid, pod := range found {
		k.ran[uid] = true
		k.table.Adopt(pod)
	}
	uids, err := k.records.List()
	if err != nil {
		return err
	}
	// A pod's directory without a record: the record was lost, or not written yet.
	entries, err := os.ReadDir(k.dirs.Pods())
	if err != nil {
		return err
	}
	for _, e := range entries {
		uids = append(uids, types.UID(e.Name()))
	}
	for _, uid := range uids {
		rec, err := k.records.Read(uid)
		if err != nil { // this affects only this one pod: its worker retries
			klog.FromContext(ctx).Error(err, "Cannot read a pod's record, adopting the pod without it")
		}
		if refusedForNow(&rec) {
			rec.Ending = &podplan.Ending{Since: time.Now().Round(0).UTC(), Removed: true}
			if err := k.records.Write(uid, rec); err != nil {
				return err
			}
		}
		k.table.Adopt(recordPod(uid, rec))
	}
	return nil
}

// refusedForNow reports whether a static pod was refused, or was ended for the node's sake, for
// instance before the machine shut down. Nothing recreates it except the next start of the kubelet.
func refusedForNow(rec *podplan.Record) bool {
	refused, ended := rec.Verdict != nil && !rec.Verdict.Admitted, rec.Ending != nil && rec.Ending.Disruption != ""
	return rec.Static && (refused || ended)
}

func recordPod(uid types.UID, rec podplan.Record) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: rec.Name, Namespace: rec.Namespace, UID: uid}}
	if rec.Grace > 0 {
		pod.Spec.TerminationGracePeriodSeconds = &rec.Grace
	}
	return pod
}

// runtimePods rebuilds, from labels, the pods whose sandboxes the runtime has.
func (k *Kubelet) runtimePods(ctx context.Context) (map[types.UID]*v1.Pod, error) {
	list, err := k.deps.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	out := map[types.UID]*v1.Pod{}
	for _, s := range list {
		uid := types.UID(s.Labels[pods.LabelPodUID])
		if uid == "" {
			continue // not ours
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: s.Labels[pods.LabelPodName], Namespace: s.Labels[pods.LabelPodNamespace], UID: uid,
		}}
		if g, err := strconv.ParseInt(s.Annotations[pods.AnnotationPodGrace], 10, 64); err == nil {
			pod.Spec.TerminationGracePeriodSeconds = &g
		}
		out[uid] = pod
	}
	return out, nil
}

// noEventsRetry is when a runtime that has no events at the moment is asked again: its administrator
// may have switched them on.
const noEventsRetry = 5 * time.Minute

// watchRuntime turns the runtime's events into wakes. An event is only a hint: just the UID is
// taken from it.
func (k *Kubelet) watchRuntime(ctx context.Context) error {
	log := klog.FromContext(ctx)
	wait := 50 * time.Millisecond
	for ctx.Err() == nil {
		ch := make(chan *runtimeapi.ContainerEventResponse, 1000)
		done, seen := make(chan struct{}), false
		go func() {
			defer close(done)
			for ev := range ch {
				seen = true
				k.hint(ev)
			}
		}()
		began := time.Now()
		err := k.deps.Runtime.GetContainerEvents(ctx, ch, func(runtimeapi.RuntimeService_GetContainerEventsClient) {
			k.eventful.Store(true)
			k.relistNow()
		})
		close(ch)
		<-done
		k.eventful.Store(false)
		k.relistNow() // until now the relist may have counted on events
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			log.Info("The runtime does not support container events; checking pods every second")
			return nil
		}
		if errors.Is(err, io.EOF) && !seen && time.Since(began) < time.Second {
			// CRI-O does so unless enable_pod_events is set.
			log.Info("The runtime ended its stream of container events at once; checking pods every second",
				"askAgainIn", noEventsRetry)
			sleep(ctx, noEventsRetry)
			continue
		}
		log.V(2).Info("Container event stream ended, will reconnect", "err", err)
		if time.Since(began) > 10*time.Second {
			wait = 50 * time.Millisecond
		}
		sleep(ctx, wait)
		wait = min(wait*2, 5*time.Second)
	}
	return nil
}

func (k *Kubelet) hint(ev *runtimeapi.ContainerEventResponse) {
	if uid := ev.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		if _, known := k.table.Get(types.UID(uid)); known {
			k.table.Wake(types.UID(uid))
			return
		}
		if ev.PodSandboxStatus.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			return // the last event of a pod that is gone
		}
	}
	k.relistNow() // it may have appeared after its pod was gone
}

func (k *Kubelet) relistNow() {
	select {
	case k.relistCh <- struct{}{}:
	default:
	}
}

// relist periodically compares what the runtime has with what it had before, and wakes the pods
// that differ. It is the safety net for lost events.
func (k *Kubelet) relist(ctx context.Context) error {
	log := klog.FromContext(ctx)
	before := map[types.UID]uint64{}
	var last time.Time
	for ctx.Err() == nil {
		began := time.Now()
		k.looked.Store(began.UnixNano())
		now, err := k.fingerprints(ctx)
		if err != nil {
			if ctx.Err() == nil {
				log.Error(err, "Relist failed")
			}
		} else {
			k.wakeChanged(ctx, before, now)
			before = now
			metrics.Relist.Observe(time.Since(began).Seconds())
			if !last.IsZero() {
				metrics.RelistInterval.Observe(began.Sub(last).Seconds())
			}
			last = began
			metrics.LastSeen.Set(float64(began.Unix()))
		}
		every := time.Second
		if k.eventful.Load() {
			every = 2*time.Minute + rand.N(time.Minute)
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
		case <-k.relistCh:
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

func (k *Kubelet) wakeChanged(ctx context.Context, before, now map[types.UID]uint64) {
	for uid, print := range now {
		_, known := k.table.Get(uid)
		old, same := before[uid]
		switch {
		case !known && k.table.IsSynced():
			k.adoptOne(ctx, uid)
		case !same || old != print:
			k.table.Relist(uid)
		}
	}
	for uid := range before {
		if _, ok := now[uid]; !ok {
			k.table.Relist(uid)
		}
	}
}

// adoptOne tears down a pod that appeared in the runtime and that nobody wants.
func (k *Kubelet) adoptOne(ctx context.Context, uid types.UID) {
	pods, err := k.runtimePods(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list orphaned pods")
		return
	}
	if pod := pods[uid]; pod != nil {
		k.table.Adopt(pod)
	}
}

// fingerprints returns, for each pod, a hash over its sandboxes and containers with their states.
func (k *Kubelet) fingerprints(ctx context.Context) (map[types.UID]uint64, error) {
	out := map[types.UID]uint64{}
	mix := func(labels map[string]string, id string, state int32) {
		uid := types.UID(labels[pods.LabelPodUID])
		if uid == "" {
			return
		}
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s=%d", id, state)
		out[uid] += h.Sum64()
	}
	sandboxes, err := k.deps.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes {
		mix(s.Labels, s.Id, int32(s.State))
	}
	containers, err := k.deps.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		mix(c.Labels, c.Id, int32(c.State))
	}
	return out, nil
}
