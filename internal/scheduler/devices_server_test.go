package scheduler_test

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/resourceclaim"
)

// keepClaims runs the controller of claims, with its rights, until the test ends.
func (s *server) keepClaims() {
	s.t.Helper()
	const account = "system:serviceaccount:kube-system:"
	// The informers are those of all controllers, with the manager's rights.
	f := informers.NewSharedInformerFactoryWithOptions(s.as("system:kube-controller-manager"), 0,
		informers.WithTransform(controller.DropManagedFields))
	c, err := resourceclaim.New(s.as(account+"resource-claim-controller", "system:serviceaccounts",
		"system:serviceaccounts:kube-system"), f, false)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		f.Shutdown()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
}

// oneDevice makes two nodes, of which n2 has a device of the class.
func (s *server) oneDevice(class *resourcev1.DeviceClass) {
	s.t.Helper()
	ctx, core, resources := s.t.Context(), s.admin.CoreV1(), s.admin.ResourceV1()
	must := func(_ any, err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	for _, name := range []string{"n1", "n2"} {
		must(core.Nodes().Create(ctx, node(name, "4"), metav1.CreateOptions{}))
	}
	must(resources.DeviceClasses().Create(ctx, class, metav1.CreateOptions{}))
	must(resources.ResourceSlices().Create(ctx, deviceSlice("n2", "gpu-0"), metav1.CreateOptions{}))
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	must(core.ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}))
}

// TestDevicesOnARealServer: a claim is made from a template, gets the only device, and is reserved for the pod, which
// is bound. A second pod waits until the first one is gone, and then gets the device at once. Rights are real.
func TestDevicesOnARealServer(t *testing.T) {
	s := startServer(t)
	ctx, core, resources := t.Context(), s.admin.CoreV1(), s.admin.ResourceV1()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.oneDevice(deviceClass("gpu"))
	defer s.schedule()()
	s.keepClaims()
	newPod := func(name string) {
		p := pod(name, "1", withTemplate("one"))
		p.UID, p.Generation = "", 0
		p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} // no kubelet says that the nodes are ready
		p.Spec.Containers[0].Image, p.Spec.AutomountServiceAccountToken = "none", new(false)
		_, err := core.Pods("default").Create(ctx, p, metav1.CreateOptions{})
		must(err)
	}
	newPod("p") // before its template: nothing polls
	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	template.Spec.Spec = deviceClaim("", "gpu", 1).Spec
	_, err := resources.ResourceClaimTemplates("default").Create(ctx, template, metav1.CreateOptions{})
	must(err)
	var first *v1.Pod
	await(t, core.Pods("default"), "p", func(p *v1.Pod) bool { first = p; return p.Spec.NodeName == "n2" })
	if len(first.Status.ResourceClaimStatuses) != 1 {
		t.Fatalf("claims of the pod: %+v", first.Status.ResourceClaimStatuses)
	}
	claim, err := resources.ResourceClaims("default").Get(ctx, *first.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
	must(err)
	switch a := claim.Status.Allocation; {
	case !metav1.IsControlledBy(claim, first), claim.Annotations[resourcev1.PodResourceClaimAnnotation] != "dev":
		t.Errorf("whose claim? %+v", claim.ObjectMeta)
	case a == nil || len(a.Devices.Results) != 1 || a.Devices.Results[0].Device != "gpu-0":
		t.Errorf("allocation: %+v", a)
	case len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != first.UID:
		t.Errorf("reserved for %+v", claim.Status.ReservedFor)
	case !slices.Contains(claim.Finalizers, resourcev1.Finalizer):
		t.Errorf("finalizers %q", claim.Finalizers)
	}
	newPod("q")
	await(t, core.Pods("default"), "q", func(p *v1.Pod) bool {
		return len(p.Status.Conditions) > 0 && p.Spec.NodeName == "" && p.Status.Conditions[0].Message ==
			"0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	})
	gone := time.Now()
	must(core.Pods("default").Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	await(t, core.Pods("default"), "q", func(p *v1.Pod) bool { return p.Spec.NodeName == "n2" })
	t.Logf("the next pod has the device %v after the first one was deleted", time.Since(gone))
	if now, err := resources.ResourceClaims("default").Get(ctx, claim.Name, metav1.GetOptions{}); err == nil {
		if now.Status.Allocation != nil || len(now.Finalizers) > 0 { // the garbage collector, which does not run here, deletes it
			t.Errorf("the first pod's claim still has %+v, finalizers %q", now.Status, now.Finalizers)
		}
	} else if !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}
