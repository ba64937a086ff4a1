package podworker

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/fakecri"
)

type noStatus struct{}

func (noStatus) Put(*v1.Pod, v1.PodStatus)     {}
func (noStatus) PutSoon(*v1.Pod, v1.PodStatus) {}
func (noStatus) Drop(types.UID)                {}

// inline executes ops on the fake runtime and nothing else.
type inline struct{ rt fakecri.Service }

func (e inline) Do(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	meta := &runtimeapi.PodSandboxMetadata{Name: in.Pod.Name, Namespace: in.Pod.Namespace, Uid: string(in.Pod.UID), Attempt: op.Attempt}
	labels := map[string]string{pods.LabelPodUID: string(in.Pod.UID)}
	switch op.Kind {
	case podplan.RunSandbox:
		id, err := e.rt.RunPodSandbox(ctx, &runtimeapi.PodSandboxConfig{Metadata: meta, Labels: labels}, "")
		return podplan.Result{Sandbox: id, Err: err}
	case podplan.CreateContainer:
		_, err := e.rt.CreateContainer(ctx, op.SandboxID, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: op.Name, Attempt: op.Attempt}, Image: &runtimeapi.ImageSpec{}, Labels: labels,
		}, nil)
		return podplan.Result{Err: err}
	case podplan.StartContainer:
		return podplan.Result{Err: e.rt.StartContainer(ctx, op.ID)}
	default:
		return podplan.Result{Image: "x"}
	}
}

// welcome admits every pod.
type welcome struct{}

func (welcome) Admit(context.Context, *v1.Pod, bool) podplan.Verdict {
	return podplan.Verdict{Admitted: true}
}
func (welcome) Freed() {}
func (welcome) Resize(context.Context, *podplan.Input) podplan.ResizeDecision {
	return podplan.ResizeDecision{}
}

// BenchmarkWake measures the cost of one wake of a running pod: look, plan, status.
func BenchmarkWake(b *testing.B) {
	rt := fakecri.Service{Runtime: fakecri.New()}
	records, err := OpenRecords(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	deps := Deps{
		Runtime: rt, Executor: inline{rt}, Status: noStatus{}, Records: records, Admission: welcome{},
		Residue: func(*v1.Pod) podplan.Residue { return podplan.Residue{} },
		Node:    func() podplan.Node { return podplan.Node{HostIPs: []string{"192.0.2.1"}, RuntimeName: "fake"} },
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{
		RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "c"}, {Name: "d"}},
	}}
	w := newWorker("u", deps)
	w.set(pod, false)
	for w.status.Phase != v1.PodRunning {
		w.step(b.Context())
		w.flying.Wait()
	}
	b.ReportAllocs()
	for b.Loop() {
		w.step(b.Context())
	}
}
