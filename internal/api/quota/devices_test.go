package quota

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cluster has the class gpu, which stands for example.com/gpu, and the class nic, which stands for nothing.
type cluster struct {
	pods   []*corev1.Pod
	claims []*resourcev1.ResourceClaim
}

func (c cluster) ResourceOf(class string) string {
	return map[string]string{"gpu": "example.com/gpu", "gpus": "example.com/gpu"}[class]
}

func (c cluster) Pod(_, name string) *corev1.Pod {
	if i := slices.IndexFunc(c.pods, func(p *corev1.Pod) bool { return p.Name == name }); i >= 0 {
		return c.pods[i]
	}
	return nil
}

func (c cluster) Claims(string) []*resourcev1.ResourceClaim { return c.claims }

func devices(name string, requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	c.Spec.Devices.Requests = requests
	return c
}

func exactly(class string, n int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n,
	}}
}

func either(list ...resourcev1.DeviceRequest) resourcev1.DeviceRequest {
	out := resourcev1.DeviceRequest{}
	for _, r := range list {
		out.FirstAvailable = append(out.FirstAvailable, resourcev1.DeviceSubRequest{
			DeviceClassName: r.Exactly.DeviceClassName, AllocationMode: r.Exactly.AllocationMode, Count: r.Exactly.Count,
		})
	}
	return out
}

// forPod lets a claim look as if the scheduler had made it for pod p.
func forPod(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: new(true)}}
	return c
}

func TestWhatClaimsForDevicesUse(t *testing.T) {
	all := resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic", AllocationMode: resourcev1.DeviceAllocationModeAll}}
	unknown := resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic", AllocationMode: "Some", Count: 3}}
	asks := func(amount string, change ...func(*corev1.Pod)) *corev1.Pod {
		named := func(p *corev1.Pod) { p.Name, p.UID = "p", "p" }
		return pod(append([]func(*corev1.Pod){named, has(container("c", amount, amount))}, change...)...)
	}
	names := func(claim string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
		}
	}
	another := func(p *corev1.Pod) { p.UID = "another" }
	const both = "gpu.deviceclass.resource.k8s.io/devices=2 requests.deviceclass.resource.kubernetes.io/gpu=2"
	older := forPod(devices("A"))
	for name, tc := range map[string]struct {
		claim *resourcev1.ResourceClaim
		has   cluster
		want  string
	}{
		"nothing":         {devices("a"), cluster{}, ""},
		"some":            {devices("a", exactly("nic", 2), exactly("nic", 1)), cluster{}, "nic.deviceclass.resource.k8s.io/devices=3"},
		"all there are":   {devices("a", all), cluster{}, "nic.deviceclass.resource.k8s.io/devices=32"},
		"nobody knows":    {devices("a", unknown), cluster{}, "nic.deviceclass.resource.k8s.io/devices=0"},
		"the worst case":  {devices("a", either(exactly("nic", 1), exactly("nic", 3), exactly("disk", 2)), exactly("disk", 1)), cluster{}, "disk.deviceclass.resource.k8s.io/devices=3 nic.deviceclass.resource.k8s.io/devices=3"},
		"of a resource":   {devices("a", exactly("gpu", 2)), cluster{}, both + " requests.example.com/gpu=2"},
		"of two classes":  {devices("a", exactly("gpu", 2), exactly("gpus", 1)), cluster{}, "gpu.deviceclass.resource.k8s.io/devices=2 gpus.deviceclass.resource.k8s.io/devices=1 requests.deviceclass.resource.kubernetes.io/gpu=2 requests.deviceclass.resource.kubernetes.io/gpus=1 requests.example.com/gpu=3"},
		"made for a pod":  {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2")}}, both},
		"with the other":  {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("deviceclass.resource.kubernetes.io/gpu=2")}}, "gpu.deviceclass.resource.k8s.io/devices=2 requests.example.com/gpu=2"},
		"more than it":    {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=1")}}, both + " requests.example.com/gpu=1"},
		"no such pod":     {forPod(devices("a", exactly("gpu", 2))), cluster{}, both + " requests.example.com/gpu=2"},
		"another pod":     {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2", another)}}, both + " requests.example.com/gpu=2"},
		"the pod is over": {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2", phase(corev1.PodFailed))}}, both + " requests.example.com/gpu=2"},
		"named by it":     {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2", names("a"))}, claims: []*resourcev1.ResourceClaim{older}}, both},
		"another is":      {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2", names("b"))}}, both + " requests.example.com/gpu=2"},
		"the first of two by name": {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2")},
			claims: []*resourcev1.ResourceClaim{forPod(devices("a")), forPod(devices("b"))}}, both},
		"the second": {forPod(devices("a", exactly("gpu", 2))), cluster{pods: []*corev1.Pod{asks("example.com/gpu=2")},
			claims: []*resourcev1.ResourceClaim{older}}, both + " requests.example.com/gpu=2"},
	} {
		t.Run(name, func(t *testing.T) {
			used := of(DeviceClaims, tc.claim, now, tc.has)
			delete(used, CountName(DeviceClaims))
			if got := show(used); got != tc.want {
				t.Errorf("uses %q\nwant %q", got, tc.want)
			}
		})
	}
}

// TestWhoCountsWhatDevicesAreCalled: pods by the name, claims by the class.
func TestWhoCountsWhatDevicesAreCalled(t *testing.T) {
	for name, want := range map[string]bool{
		"requests.example.com/gpu": true, "requests.deviceclass.resource.kubernetes.io/gpu": true, "requests.cpu": false,
		"requests.storage": false, "gpu.deviceclass.resource.k8s.io/devices": true, "limits.cpu": false, "requests.hugepages-2Mi": false,
		"requests.kubernetes.io/thing": false,
	} {
		q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: amounts(name + "=1")}}
		if got := slices.Contains(Counted(q), DeviceClaims); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
