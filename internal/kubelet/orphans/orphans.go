// Package orphans finds the pods that are on the node although nobody speaks for them: at the start,
// in the runtime, in records and in directories; later, what appears in the runtime and what pods
// left behind. Each gets a worker, which tears it down like any other pod, unless a source wants it.
package orphans

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Table has the pods' workers. *podworker.Table implements it.
type Table interface {
	Get(uid types.UID) (podworker.Snapshot, bool)
	Adopt(orphan *v1.Pod)
}

// Deps are where orphans are looked for, and who takes care of them.
type Deps struct {
	Runtime internalapi.RuntimeService
	Records *podworker.Records
	Dirs    criconfig.Dirs
	// Groups returns the pods that have a cgroup.
	Groups func() ([]types.UID, error)
	Table  Table
}

// Orphans are those of one node.
type Orphans struct{ deps Deps }

// New returns the node's orphans.
func New(deps Deps) *Orphans { return &Orphans{deps} }

// AdoptAll gives a worker to each pod that the runtime or a record knows. If a source wants the pod,
// it takes it over; other pods are torn down. It returns which pods have a sandbox.
func (o *Orphans) AdoptAll(ctx context.Context) (map[types.UID]bool, error) {
	found, err := o.awaitRuntimePods(ctx)
	if err != nil {
		return nil, err
	}
	ran := make(map[types.UID]bool, len(found))
	for uid, pod := range found {
		ran[uid] = true
		o.deps.Table.Adopt(pod)
	}
	uids, err := o.deps.Records.List()
	if err != nil {
		return nil, err
	}
	unrecorded, err := o.withDirectory() // their records were lost, or not written yet
	if err != nil {
		return nil, err
	}
	for _, uid := range append(uids, unrecorded...) {
		if err := o.adoptRecord(ctx, uid); err != nil {
			return nil, err
		}
	}
	return ran, nil
}

func (o *Orphans) awaitRuntimePods(ctx context.Context) (map[types.UID]*v1.Pod, error) {
	for wait := 20 * time.Millisecond; ; wait = min(wait*2, 5*time.Second) {
		found, err := o.runtimePods(ctx)
		if err == nil {
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		klog.FromContext(ctx).Error(err, "Cannot list the runtime's pods yet")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (o *Orphans) adoptRecord(ctx context.Context, uid types.UID) error {
	rec, err := o.deps.Records.Read(uid)
	if err != nil { // this affects only this one pod: its worker retries
		klog.FromContext(ctx).Error(err, "Cannot read a pod's record, adopting the pod without it")
	}
	if refusedForNow(&rec) {
		rec.Ending = &podplan.Ending{Since: time.Now().Round(0).UTC(), Removed: true}
		if err := o.deps.Records.Write(uid, rec); err != nil {
			return err
		}
	}
	o.deps.Table.Adopt(recordPod(uid, rec))
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
func (o *Orphans) runtimePods(ctx context.Context) (map[types.UID]*v1.Pod, error) {
	list, err := o.deps.Runtime.ListPodSandbox(ctx, nil)
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

// Adopt gives a worker to a pod that appeared in the runtime and that nobody wants.
func (o *Orphans) Adopt(ctx context.Context, uid types.UID) {
	pods, err := o.runtimePods(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list orphaned pods")
		return
	}
	if pod := pods[uid]; pod != nil {
		o.deps.Table.Adopt(pod)
	}
}

// Run periodically looks for what unknown pods have left: their directories and cgroups. It is called
// once all sources have said what they want.
func (o *Orphans) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		o.sweepOnce(ctx)
		select {
		case <-time.After(2*time.Minute + rand.N(time.Minute)):
		case <-ctx.Done():
		}
	}
	return nil
}

// sweepOnce gives each such pod a worker, which finds that nobody wants the pod and tears down what
// there is, as for any other. A pod that is known has a worker before it has anything else.
func (o *Orphans) sweepOnce(ctx context.Context) {
	log := klog.FromContext(ctx)
	left, err := o.leftBehind()
	if err != nil {
		log.Error(err, "Cannot list what removed pods left behind")
	}
	for _, uid := range left {
		if _, known := o.deps.Table.Get(uid); known {
			continue
		}
		rec, err := o.deps.Records.Read(uid)
		if err != nil {
			log.Error(err, "Cannot read a removed pod's record, cleaning up without it")
		}
		log.Info("Cleaning up what an unknown pod left behind", "podUID", uid)
		o.deps.Table.Adopt(recordPod(uid, rec))
	}
}

// leftBehind returns the UIDs of the pods that have a directory or a cgroup.
func (o *Orphans) leftBehind() ([]types.UID, error) {
	out, err := o.withDirectory()
	if err != nil {
		return nil, err
	}
	grouped, err := o.deps.Groups()
	return append(out, grouped...), err
}

func (o *Orphans) withDirectory() ([]types.UID, error) {
	entries, err := os.ReadDir(o.deps.Dirs.Pods())
	if err != nil {
		return nil, err
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out, nil
}
