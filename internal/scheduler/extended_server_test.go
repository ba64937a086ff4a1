package scheduler_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExtendedResourcesOnARealServer: the claim that the scheduler makes is accepted, as is what it writes into the
// pod's status; a second pod has the device when the first one is gone. A claim that a scheduler has left behind makes
// way, also if it was made by somebody who only pretends to be one. Rights are real.
func TestExtendedResourcesOnARealServer(t *testing.T) {
	s := startServer(t)
	ctx, core, resources := t.Context(), s.admin.CoreV1(), s.admin.ResourceV1()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.oneDevice(standsFor(extendedGPU))
	stop := s.schedule()
	s.keepClaims()
	newPod := func(name string) *v1.Pod {
		p := pod(name, "1", asks(extendedGPU, "1"))
		p.UID, p.Generation = "", 0
		p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} // no kubelet says that the nodes are ready
		p.Spec.Containers[0].Image, p.Spec.AutomountServiceAccountToken = "none", new(false)
		p, err := core.Pods("default").Create(ctx, p, metav1.CreateOptions{})
		must(err)
		return p
	}
	deviceOf := func(name string) *resourcev1.ResourceClaim {
		t.Helper()
		var p *v1.Pod
		await(t, core.Pods("default"), name, func(now *v1.Pod) bool { p = now; return p.Spec.NodeName == "n2" })
		told := p.Status.ExtendedResourceClaimStatus
		if told == nil || len(told.RequestMappings) != 1 || told.RequestMappings[0].ResourceName != extendedGPU {
			t.Fatalf("status of pod %s: %+v", name, told)
		}
		claim, err := resources.ResourceClaims("default").Get(t.Context(), told.ResourceClaimName, metav1.GetOptions{})
		must(err)
		switch a := claim.Status.Allocation; {
		case !metav1.IsControlledBy(claim, p), claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true":
			t.Errorf("whose claim? %+v", claim.ObjectMeta)
		case a == nil || len(a.Devices.Results) != 1 || a.Devices.Results[0].Device != "gpu-0" || a.Devices.Results[0].Request != told.RequestMappings[0].RequestName:
			t.Errorf("allocation: %+v", a)
		case len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != p.UID:
			t.Errorf("reserved for %+v", claim.Status.ReservedFor)
		case !slices.Contains(claim.Finalizers, resourcev1.Finalizer):
			t.Errorf("finalizers %q", claim.Finalizers)
		}
		return claim
	}
	end := func(name string) {
		t.Helper()
		must(core.Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	}
	newPod("p")
	deviceOf("p")
	newPod("q")
	await(t, core.Pods("default"), "q", func(p *v1.Pod) bool { return len(p.Status.Conditions) > 0 })
	end("p")
	left := deviceOf("q")
	end("q")

	stop()
	r := newPod("r")
	forged := left.DeepCopy()
	forged.ObjectMeta = metav1.ObjectMeta{
		Name: "left", Annotations: left.Annotations, Finalizers: left.Finalizers,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "r", UID: r.UID, Controller: new(true)}},
	}
	made, err := resources.ResourceClaims("default").Create(ctx, forged, metav1.CreateOptions{})
	must(err)
	made.Status = left.Status
	made.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "r", UID: r.UID}}
	_, err = resources.ResourceClaims("default").UpdateStatus(ctx, made, metav1.UpdateOptions{})
	must(err)
	defer s.schedule()()
	if now := deviceOf("r"); now.UID == made.UID {
		t.Error("the pod has the claim that was left behind")
	}
	if _, err := resources.ResourceClaims("default").Get(ctx, "left", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the claim that was left behind: %v", err)
	}
}
