package devices

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// world is a cluster as the plugin sees it. Its informers are filled by hand, and never run.
type world struct {
	fwk.Handle
	client  *fake.Clientset
	factory informers.SharedInformerFactory
	manager *Manager
}

func (w *world) SharedInformerFactory() informers.SharedInformerFactory { return w.factory }
func (w *world) SharedDRAManager() fwk.SharedDRAManager                 { return w.manager }
func (w *world) ClientSet() kubernetes.Interface                        { return w.client }

// plugin returns the plugin in a cluster with these claims.
func plugin(t *testing.T, claims ...*resourcev1.ResourceClaim) *Devices {
	t.Helper()
	client := fake.NewClientset()
	w := &world{client: client, factory: informers.NewSharedInformerFactory(client, 0)}
	for _, c := range claims {
		if err := w.factory.Resource().V1().ResourceClaims().Informer().GetStore().Add(c); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.manager, err = NewManager(w.factory); err != nil {
		t.Fatal(err)
	}
	pl, err := New(t.Context(), &configv1.DynamicResourcesArgs{}, w)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := pl.(*Devices)
	if !ok {
		t.Fatalf("got a %T", pl)
	}
	return d
}

func pod(name string, claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	return p
}

// templated returns a pod with a claim that was made for it; "" for one that was not made yet.
func templated(name, claim string) *v1.Pod {
	p := pod(name)
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "t", ResourceClaimTemplateName: new("template")}}
	if claim != "" {
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "t", ResourceClaimName: &claim}}
	}
	return p
}

func ownedBy(c *resourcev1.ResourceClaim, p *v1.Pod) *resourcev1.ResourceClaim {
	c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))}
	return c
}

func TestWhatPodsAreWokenBy(t *testing.T) {
	class := func(name string, selectors int) *resourcev1.DeviceClass {
		return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{Selectors: make([]resourcev1.DeviceSelector, selectors)}}
	}
	slice := func(devices int) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: make([]resourcev1.Device, devices)}}
	}
	relabelled := claim("open", "2")
	relabelled.Labels = map[string]string{"a": "b"}
	reserved := claim("has", "2", "x")
	reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "q", UID: "q"}}
	open, has, both, lacks := pod("p", "open"), pod("p", "has"), pod("p", "open", "has"), pod("p", "open", "absent")
	for name, tc := range map[string]struct {
		pod      *v1.Pod
		resource fwk.EventResource
		action   fwk.ActionType
		old, obj any
		want     bool
	}{
		"a new node":       {open, fwk.Node, fwk.Add, nil, &v1.Node{}, true},
		"labels of a node": {open, fwk.Node, fwk.UpdateNodeLabel, &v1.Node{}, &v1.Node{}, true},
		"taints of a node": {open, fwk.Node, fwk.UpdateNodeTaint, &v1.Node{}, &v1.Node{}, false},

		"its claim is made":                         {open, fwk.ResourceClaim, fwk.Add, nil, claim("open", "1"), true},
		"another claim is made":                     {open, fwk.ResourceClaim, fwk.Add, nil, claim("other", "1"), false},
		"one of its claims, another is missing":     {lacks, fwk.ResourceClaim, fwk.Add, nil, claim("open", "1"), false},
		"its claim is allocated":                    {both, fwk.ResourceClaim, fwk.Update, claim("has", "1"), claim("has", "2", "x"), true},
		"its claim is reserved for somebody":        {has, fwk.ResourceClaim, fwk.Update, claim("has", "1", "x"), reserved, true},
		"its claim has other labels":                {open, fwk.ResourceClaim, fwk.Update, claim("open", "1"), relabelled, false},
		"another claim is allocated":                {open, fwk.ResourceClaim, fwk.Update, claim("other", "1"), claim("other", "2", "y"), false},
		"another claim gives up its devices":        {open, fwk.ResourceClaim, fwk.Update, claim("other", "1", "y"), claim("other", "2"), true},
		"it does, and the pod needs none":           {has, fwk.ResourceClaim, fwk.Update, claim("other", "1", "y"), claim("other", "2"), false},
		"another claim is deleted with its devices": {open, fwk.ResourceClaim, fwk.Delete, claim("other", "1", "y"), nil, true},
		"another claim is deleted that had none":    {open, fwk.ResourceClaim, fwk.Delete, claim("other", "1"), nil, false},

		"the name of its claim is known":         {templated("p", ""), fwk.UnscheduledPod, fwk.UpdatePodGeneratedResourceClaim, templated("p", ""), templated("p", "made"), true},
		"the name of a claim that is not there":  {templated("p", ""), fwk.UnscheduledPod, fwk.UpdatePodGeneratedResourceClaim, templated("p", ""), templated("p", "absent"), false},
		"the name of somebody else's claim":      {templated("p", ""), fwk.UnscheduledPod, fwk.UpdatePodGeneratedResourceClaim, templated("q", ""), templated("q", "made"), false},
		"a pod that was not bound":               {open, fwk.AssignedPod, fwk.Delete, pod("q", "open"), nil, true},
		"one whose claims are gone":              {open, fwk.AssignedPod, fwk.Delete, pod("q", "absent"), nil, true},
		"one whose claims have their devices":    {open, fwk.AssignedPod, fwk.Delete, pod("q", "has"), nil, false},
		"one without claims":                     {open, fwk.AssignedPod, fwk.Delete, pod("q"), nil, false},
		"one that was not bound, nothing needed": {has, fwk.AssignedPod, fwk.Delete, pod("q", "open"), nil, false},

		"its class":                        {open, fwk.DeviceClass, fwk.Add, nil, class("gpu", 0), true},
		"another class":                    {open, fwk.DeviceClass, fwk.Add, nil, class("nic", 0), false},
		"other selectors of its class":     {open, fwk.DeviceClass, fwk.Update, class("gpu", 0), class("gpu", 1), true},
		"nothing of its class":             {open, fwk.DeviceClass, fwk.Update, class("gpu", 1), class("gpu", 1), false},
		"its class, when it needs nothing": {has, fwk.DeviceClass, fwk.Add, nil, class("gpu", 0), false},
		"devices":                          {open, fwk.ResourceSlice, fwk.Add, nil, slice(1), true},
		"more devices":                     {open, fwk.ResourceSlice, fwk.Update, slice(1), slice(2), true},
		"the same devices":                 {open, fwk.ResourceSlice, fwk.Update, slice(1), slice(1), false},
		"devices, when it needs none":      {has, fwk.ResourceSlice, fwk.Add, nil, slice(1), false},
		"fewer devices":                    {open, fwk.ResourceSlice, fwk.Delete, slice(1), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := plugin(t, claim("open", "1"), claim("has", "1", "x"), ownedBy(claim("made", "1"), pod("p")))
			if got := heeds(t, d, tc.pod, fwk.ClusterEvent{Resource: tc.resource, ActionType: tc.action}, tc.old, tc.obj); got != tc.want {
				t.Errorf("it is woken: %t", got)
			}
		})
	}
}

// heeds reports whether a plugin that rejected the pod has it tried again after an event.
func heeds(t *testing.T, d *Devices, p *v1.Pod, event fwk.ClusterEvent, oldObj, newObj any) bool {
	t.Helper()
	all, err := d.EventsToRegister(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(h fwk.ClusterEventWithHint) bool {
		same := h.Event.Resource == event.Resource ||
			h.Event.Resource == fwk.Pod && (event.Resource == fwk.AssignedPod || event.Resource == fwk.UnscheduledPod)
		if !same || h.Event.ActionType&event.ActionType == 0 {
			return false
		}
		if h.QueueingHintFn == nil {
			return true
		}
		hint, err := h.QueueingHintFn(klog.Background(), p, oldObj, newObj)
		if err != nil {
			t.Error(err)
		}
		return hint == fwk.Queue
	})
}

func TestWhatKeepsAPodOutOfTheQueue(t *testing.T) {
	ending := claim("ending", "1")
	ending.DeletionTimestamp = new(metav1.Now())
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"nothing":             {pod("p", "there"), ""},
		"no claims":           {pod("p"), ""},
		"no claim":            {pod("p", "there", "absent"), `could not find ResourceClaim "ns/absent"`},
		"one that is deleted": {pod("p", "ending"), `resourceclaim "ending" is being deleted`},
		"one to be made":      {templated("p", ""), `pod "ns/p": ResourceClaim not created yet`},
		"one that was made":   {templated("p", "made"), ""},
		"one of another pod":  {templated("q", "made"), "ResourceClaim ns/made was not created for Pod ns/q (Pod is not owner)"},
	} {
		t.Run(name, func(t *testing.T) {
			d := plugin(t, claim("there", "1"), ending, ownedBy(claim("made", "1"), pod("p")))
			if got := d.PreEnqueue(t.Context(), tc.pod).Message(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestOnlyPodsWithoutClaimsAreAlike to the plugin.
func TestOnlyPodsWithoutClaimsAreAlike(t *testing.T) {
	d := plugin(t)
	if _, st := d.SignPod(t.Context(), pod("p")); !st.IsSuccess() {
		t.Error(st)
	}
	if _, st := d.SignPod(t.Context(), pod("p", "c")); !st.IsRejected() {
		t.Error("it signs a pod with claims")
	}
}
