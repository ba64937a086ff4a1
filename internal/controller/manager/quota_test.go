package manager_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const quotas = "resourcequota-controller"

func (c *cluster) limit(t *testing.T, name string, hard v1.ResourceList) {
	t.Helper()
	q := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ResourceQuotaSpec{Hard: hard}}
	if _, err := c.CoreV1().ResourceQuotas("default").Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// usage waits until a watch shows that the quota is used as wanted, "pods=1/3 services=0/1".
func (c *cluster) usage(t *testing.T, name, want string) {
	t.Helper()
	await(t, c.CoreV1().ResourceQuotas("default"), name, func(q *v1.ResourceQuota, _ bool) bool {
		var out []string
		for name, used := range q.Status.Used {
			hard := q.Status.Hard[name]
			out = append(out, fmt.Sprintf("%s=%s/%s", name, used.String(), hard.String()))
		}
		slices.Sort(out)
		return strings.Join(out, " ") == want
	})
}

func quantities(of map[v1.ResourceName]string) v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range of {
		out[name] = resource.MustParse(q)
	}
	return out
}

func TestWatchersSeeWhatIsUsedOfAQuota(t *testing.T) {
	c := start(t, nil, quotas)
	ctx, api := t.Context(), c.CoreV1()
	c.account(t, "default")
	c.limit(t, "q", quantities(map[v1.ResourceName]string{"pods": "3", "requests.cpu": "2", "count/roles.rbac.authorization.k8s.io": "1", "configmaps": "2"}))
	const rest = " count/roles.rbac.authorization.k8s.io=0/1 pods="
	c.usage(t, "q", "configmaps=0/2"+rest+"0/3 requests.cpu=0/2")

	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i",
		Resources: v1.ResourceRequirements{Requests: quantities(map[v1.ResourceName]string{"cpu": "500m"})}}}}}
	if _, err := api.Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.usage(t, "q", "configmaps=0/2"+rest+"1/3 requests.cpu=500m/2")
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	if _, err := api.ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.usage(t, "q", "configmaps=1/2"+rest+"1/3 requests.cpu=500m/2")
	if _, err := api.ResourceQuotas("default").Patch(ctx, "q", types.MergePatchType, []byte(`{"spec":{"hard":{"pods":"5"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.usage(t, "q", "configmaps=1/2"+rest+"1/5 requests.cpu=500m/2")

	// A pod that has ended uses nothing, although it is still there.
	if _, err := api.Pods("default").Patch(ctx, "p", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	c.usage(t, "q", "configmaps=1/2"+rest+"0/5 requests.cpu=0/2")
	if err := api.ConfigMaps("default").Delete(ctx, "m", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.usage(t, "q", "configmaps=0/2"+rest+"0/5 requests.cpu=0/2")
}

func TestAQuotaStatusOfSomebodyElseIsPutRight(t *testing.T) {
	c := start(t, nil, quotas)
	c.limit(t, "q", quantities(map[v1.ResourceName]string{"replicationcontrollers": "2"}))
	c.usage(t, "q", "replicationcontrollers=0/2")
	wrong := []byte(`{"status":{"hard":{"replicationcontrollers":"9"},"used":{"replicationcontrollers":"7"}}}`)
	if _, err := c.CoreV1().ResourceQuotas("default").Patch(t.Context(), "q", types.MergePatchType, wrong, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	c.usage(t, "q", "replicationcontrollers=0/2")
}

func TestAQuotaOfWhatIsNotServedIsUsedByNothing(t *testing.T) {
	c := start(t, nil, quotas)
	c.limit(t, "q", quantities(map[v1.ResourceName]string{"count/widgets.example.com": "2", "secrets": "1"}))
	c.usage(t, "q", "count/widgets.example.com=0/2 secrets=0/1")
}

func TestAQuotaUnderManyCreationsEndsRight(t *testing.T) {
	c := start(t, nil, quotas)
	c.limit(t, "a", quantities(map[v1.ResourceName]string{"count/configmaps": "150"}))
	c.limit(t, "b", quantities(map[v1.ResourceName]string{"configmaps": "150", "secrets": "1"}))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i)}}
			if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	c.usage(t, "a", "count/configmaps=100/150")
	c.usage(t, "b", "configmaps=100/150 secrets=0/1")
}

// TestQuotasOfDevices: who may have two of a resource may not have more by way of claims for what it stands for, and
// what the scheduler makes for a pod is not counted twice. What the status says is what admission goes by.
func TestQuotasOfDevices(t *testing.T) {
	c := start(t, nil, quotas)
	c.account(t, "default")
	ctx, claims := t.Context(), c.ResourceV1().ResourceClaims("default")
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	if _, err := c.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.limit(t, "q", quantities(map[v1.ResourceName]string{"gpu.deviceclass.resource.k8s.io/devices": "4", "requests.example.com/gpu": "2"}))
	usage := func(devices, named string) {
		t.Helper()
		c.usage(t, "q", "gpu.deviceclass.resource.k8s.io/devices="+devices+"/4 requests.example.com/gpu="+named+"/2")
	}
	usage("0", "0")
	claim := func(name string, n int64, pod *v1.Pod) error {
		its := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		its.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n,
		}}}
		if pod != nil {
			its.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			its.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}}
		}
		_, err := claims.Create(ctx, its, metav1.CreateOptions{})
		return err
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	exceeds := func(err error, why string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "exceeded quota: q, requested: "+why) {
			t.Errorf("%v, want %s", err, why)
		}
	}
	ok(claim("a", 1, nil))
	usage("1", "0")
	class.Spec.ExtendedResourceName = new("example.com/gpu")
	if _, err := c.ResourceV1().DeviceClasses().Update(ctx, class, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	usage("1", "1") // the class stands for it now
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i",
		Resources: v1.ResourceRequirements{Limits: quantities(map[v1.ResourceName]string{"example.com/gpu": "1"})}}}}}
	pod, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	ok(err)
	usage("1", "2")
	exceeds(claim("b", 1, nil), "requests.example.com/gpu=1, used: requests.example.com/gpu=2")
	ok(claim("made", 1, pod))
	usage("2", "2")
	exceeds(claim("made-up", 1, pod), "requests.example.com/gpu=1, used: requests.example.com/gpu=2")
	exceeds(claim("c", 3, nil), "gpu.deviceclass.resource.k8s.io/devices=3,requests.example.com/gpu=3")
	ok(claims.Delete(ctx, "a", metav1.DeleteOptions{}))
	usage("1", "1")
}
