package quota

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// amounts reads a resource list from words: "cpu=1 memory=1Gi".
func amounts(words string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for w := range strings.FieldsSeq(words) {
		name, q, _ := strings.Cut(w, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

// show is the inverse of amounts, in the order of the names.
func show(list corev1.ResourceList) string {
	var out []string
	for name, q := range list {
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func container(name, requests, limits string) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}}
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{}
	for _, f := range change {
		f(p)
	}
	return p
}

func has(containers ...corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = containers }
}

func starts(containers ...corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.InitContainers = containers }
}

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func deleted(ago time.Duration, grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-ago)}, &grace
	}
}

// resized returns a change that makes a pod run with more than it now asks for.
func resized(has string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: amounts(has),
			Resources: &corev1.ResourceRequirements{Requests: amounts(has)}}}
	}
}

func service(kind corev1.ServiceType, nodePorts ...int32) *corev1.Service {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: kind}}
	for _, p := range nodePorts {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 80, NodePort: p})
	}
	return s
}

func withoutNodePorts(s *corev1.Service) *corev1.Service {
	s.Spec.AllocateLoadBalancerNodePorts = new(false)
	return s
}

func claim(storage string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{}
	c.Spec.Resources.Requests = amounts("storage=" + storage)
	for _, f := range change {
		f(c)
	}
	return c
}

func class(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

// TestWhatAnObjectUses: each quota names one more resource than the object uses.
func TestWhatAnObjectUses(t *testing.T) {
	app := container("c", "cpu=1 memory=1Gi ephemeral-storage=1Gi", "cpu=2 memory=2Gi ephemeral-storage=2Gi")
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("s", "cpu=500m", "")
	sidecar.RestartPolicy = &always
	for name, tc := range map[string]struct {
		resource   string
		obj        runtime.Object
		hard, want string
	}{
		"pod": {"pods", pod(has(app)), "pods=9 count/pods=9 cpu=9 memory=9Gi services=9",
			"count/pods=1 cpu=1 memory=1Gi pods=1"},
		"requests and limits": {"pods", pod(has(app)), "requests.cpu=9 limits.cpu=9 requests.memory=9Gi limits.memory=9Gi",
			"limits.cpu=2 limits.memory=2Gi requests.cpu=1 requests.memory=1Gi"},
		"ephemeral storage": {"pods", pod(has(app)), "ephemeral-storage=9Gi requests.ephemeral-storage=9Gi limits.ephemeral-storage=9Gi",
			"ephemeral-storage=1Gi limits.ephemeral-storage=2Gi requests.ephemeral-storage=1Gi"},
		"containers add up":      {"pods", pod(has(app, app)), "cpu=9 limits.cpu=9", "cpu=2 limits.cpu=4"},
		"a large init container": {"pods", pod(has(app), starts(container("i", "cpu=3", ""))), "cpu=9", "cpu=3"},
		"a sidecar adds":         {"pods", pod(has(app), starts(sidecar)), "cpu=9", "cpu=1500m"},
		"overhead adds":          {"pods", pod(has(app), func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu=250m") }), "cpu=9", "cpu=1250m"},
		"huge pages":             {"pods", pod(has(container("c", "hugepages-2Mi=4Mi", "hugepages-2Mi=4Mi"))), "hugepages-2Mi=9Mi requests.hugepages-2Mi=9Mi limits.hugepages-2Mi=9Mi", "hugepages-2Mi=4Mi requests.hugepages-2Mi=4Mi"},
		"extended resources":     {"pods", pod(has(container("c", "example.com/gpu=2", "example.com/gpu=2"))), "requests.example.com/gpu=9 limits.example.com/gpu=9", "requests.example.com/gpu=2"},
		"succeeded":              {"pods", pod(has(app), phase(corev1.PodSucceeded)), "pods=9 cpu=9 count/pods=9", "count/pods=1"},
		"failed":                 {"pods", pod(has(app), phase(corev1.PodFailed)), "pods=9 cpu=9 count/pods=9", "count/pods=1"},
		"on its way out":         {"pods", pod(has(app), deleted(20*time.Second, 30)), "pods=9 cpu=9", "cpu=1 pods=1"},
		"stuck on its way out":   {"pods", pod(has(app), deleted(31*time.Second, 30)), "pods=9 cpu=9", ""},
		"resized, still the old": {"pods", pod(has(container("c", "cpu=1", "")), resized("cpu=3")), "cpu=9", "cpu=3"},
		"resized to more":        {"pods", pod(has(container("c", "cpu=4", "")), resized("cpu=3")), "cpu=9", "cpu=4"},
		"pod-level resources": {"pods", pod(has(container("c", "", "")), func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=3"), Limits: amounts("cpu=5")}
		}), "cpu=9 limits.cpu=9", "cpu=3 limits.cpu=5"},
		"cluster IP":              {"services", service(corev1.ServiceTypeClusterIP, 0), "services=9 services.nodeports=9 services.loadbalancers=9 count/services=9", "count/services=1 services=1"},
		"node ports":              {"services", service(corev1.ServiceTypeNodePort, 0, 30000), "services=9 services.nodeports=9 services.loadbalancers=9", "services.nodeports=2 services=1"},
		"load balancer":           {"services", service(corev1.ServiceTypeLoadBalancer, 0, 0), "services.nodeports=9 services.loadbalancers=9", "services.loadbalancers=1 services.nodeports=2"},
		"balancer, no node ports": {"services", withoutNodePorts(service(corev1.ServiceTypeLoadBalancer, 0)), "services.nodeports=9 services.loadbalancers=9", "services.loadbalancers=1 services.nodeports=0"},
		"balancer, asked for one": {"services", withoutNodePorts(service(corev1.ServiceTypeLoadBalancer, 0, 30000)), "services.nodeports=9", "services.nodeports=1"},
		"claim": {"persistentvolumeclaims", claim("5Gi"), "persistentvolumeclaims=9 requests.storage=9Gi count/persistentvolumeclaims=9",
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=5Gi"},
		"claim of a class": {"persistentvolumeclaims", claim("5Gi", class("gold")),
			"gold.storageclass.storage.k8s.io/requests.storage=9Gi gold.storageclass.storage.k8s.io/persistentvolumeclaims=9 silver.storageclass.storage.k8s.io/requests.storage=9Gi",
			"gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/requests.storage=5Gi"},
		"class by annotation": {"persistentvolumeclaims", claim("5Gi", class("silver"), func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "gold"}
		}), "gold.storageclass.storage.k8s.io/requests.storage=9Gi silver.storageclass.storage.k8s.io/requests.storage=9Gi", "gold.storageclass.storage.k8s.io/requests.storage=5Gi"},
		"volume larger than asked for": {"persistentvolumeclaims", claim("5Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Status.AllocatedResources = amounts("storage=8Gi")
		}), "requests.storage=9Gi", "requests.storage=8Gi"},
		"parts of a byte": {"persistentvolumeclaims", claim("1500m"), "requests.storage=9Gi", "requests.storage=2"},
		"replication":     {"replicationcontrollers", &corev1.ReplicationController{}, "replicationcontrollers=9 count/replicationcontrollers=9 pods=9", "count/replicationcontrollers=1 replicationcontrollers=1"},
		"config map":      {"configmaps", &corev1.ConfigMap{}, "configmaps=9 count/configmaps=9 secrets=9", "configmaps=1 count/configmaps=1"},
		"secret":          {"secrets", &corev1.Secret{}, "secrets=9 count/secrets=9 pods=9", "count/secrets=1 secrets=1"},
		"quota":           {"resourcequotas", &corev1.ResourceQuota{}, "resourcequotas=9", "resourcequotas=1"},
		"of another group": {"leases.coordination.k8s.io", &corev1.ConfigMap{}, "count/leases.coordination.k8s.io=9 count/leases=9",
			"count/leases.coordination.k8s.io=1"},
	} {
		t.Run(name, func(t *testing.T) {
			q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: amounts(tc.hard)}}
			if got := show(By(q, schema.ParseGroupResource(tc.resource), tc.obj, now, nil)); got != tc.want {
				t.Errorf("uses %q, want %q", got, tc.want)
			}
		})
	}
}

func exists(scopes ...corev1.ResourceQuotaScope) corev1.ResourceQuotaSpec {
	return corev1.ResourceQuotaSpec{Scopes: scopes}
}

func selects(scope corev1.ResourceQuotaScope, op corev1.ScopeSelectorOperator, values ...string) corev1.ResourceQuotaSpec {
	return corev1.ResourceQuotaSpec{ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
		{ScopeName: scope, Operator: op, Values: values},
	}}}
}

func TestScopes(t *testing.T) {
	prio := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.PriorityClassName = name }
	}
	deadline := func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(0)) }
	near := func(t corev1.PodAffinityTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{t}}}
		}
	}
	rather := func(t corev1.PodAffinityTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: t}},
			}}
		}
	}
	attributes := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		return claim("1Gi", change)
	}
	fast := attributes(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = new("fast") })
	const (
		terminating, notTerminating = corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating
		bestEffort, notBestEffort   = corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort
		priority, cross             = corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity
		volume                      = corev1.ResourceQuotaScopeVolumeAttributesClass
		in, notIn                   = corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn
		some, none                  = corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist
	)
	for name, tc := range map[string]struct {
		spec     corev1.ResourceQuotaSpec
		yes, not []runtime.Object
	}{
		"none":           {exists(), []runtime.Object{pod(), claim("1Gi"), &corev1.Secret{}}, nil},
		"terminating":    {exists(terminating), []runtime.Object{pod(deadline)}, []runtime.Object{pod(), &corev1.Secret{}}},
		"notTerminating": {exists(notTerminating), []runtime.Object{pod()}, []runtime.Object{pod(deadline)}},
		"best effort": {exists(bestEffort), []runtime.Object{pod(), pod(has(container("c", "", ""))), pod(has(container("c", "example.com/gpu=1", "")))},
			[]runtime.Object{pod(has(container("c", "cpu=1", ""))), pod(has(container("c", "", "memory=1Gi"))), pod(starts(container("i", "cpu=1", "")))}},
		"not best effort":    {exists(notBestEffort), []runtime.Object{pod(has(container("c", "cpu=1", "")))}, []runtime.Object{pod()}},
		"two are both":       {exists(notBestEffort, terminating), []runtime.Object{pod(deadline, has(container("c", "cpu=1", "")))}, []runtime.Object{pod(deadline), pod(has(container("c", "cpu=1", "")))}},
		"some priority":      {exists(priority), []runtime.Object{pod(prio("high"))}, []runtime.Object{pod()}},
		"priority in":        {selects(priority, in, "high", "higher"), []runtime.Object{pod(prio("high")), pod(prio("higher"))}, []runtime.Object{pod(prio("low")), pod()}},
		"priority not in":    {selects(priority, notIn, "high"), []runtime.Object{pod(prio("low")), pod()}, []runtime.Object{pod(prio("high"))}},
		"priority exists":    {selects(priority, some), []runtime.Object{pod(prio("high"))}, []runtime.Object{pod()}},
		"priority not":       {selects(priority, none), []runtime.Object{pod()}, []runtime.Object{pod(prio("high"))}},
		"other namespaces":   {selects(cross, some), []runtime.Object{pod(near(corev1.PodAffinityTerm{Namespaces: []string{"x"}})), pod(rather(corev1.PodAffinityTerm{NamespaceSelector: &metav1.LabelSelector{}}))}, []runtime.Object{pod(), pod(near(corev1.PodAffinityTerm{}))}},
		"attributes in":      {selects(volume, in, "fast"), []runtime.Object{fast}, []runtime.Object{claim("1Gi"), pod()}},
		"attributes not in":  {selects(volume, notIn, "fast"), []runtime.Object{claim("1Gi")}, []runtime.Object{fast}},
		"attributes exists":  {selects(volume, some), []runtime.Object{fast}, []runtime.Object{claim("1Gi")}},
		"attributes not set": {selects(volume, none), []runtime.Object{claim("1Gi")}, []runtime.Object{fast}},
		"attributes so far": {selects(volume, in, "slow"), []runtime.Object{
			attributes(func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = new("slow") }),
			attributes(func(c *corev1.PersistentVolumeClaim) {
				c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "slow"}
			}),
		}, []runtime.Object{fast}},
		"a pod's scope and claims": {selects(priority, notIn, "high"), nil, []runtime.Object{claim("1Gi")}},
	} {
		t.Run(name, func(t *testing.T) {
			q := &corev1.ResourceQuota{Spec: tc.spec}
			for want, objects := range map[bool][]runtime.Object{true: tc.yes, false: tc.not} {
				for i, o := range objects {
					if got := matches(q, o); got != want {
						t.Errorf("%T %d (of those that are %t): %t", o, i, want, got)
					}
				}
			}
		})
	}
}

// TestWhatAQuotaMakesContainersSay: the words name the containers, as upstream's do.
func TestWhatAQuotaMakesContainersSay(t *testing.T) {
	for name, tc := range map[string]struct {
		hard string
		pod  *corev1.Pod
		want string
	}{
		"nothing":        {"pods=1 services=1 ephemeral-storage=1Gi requests.example.com/gpu=1", pod(has(container("c", "", ""))), ""},
		"all is said":    {"cpu=9 memory=9Gi limits.cpu=9", pod(has(container("c", "cpu=1 memory=1Gi", "cpu=1"))), ""},
		"zero is said":   {"cpu=9", pod(has(container("c", "cpu=0", ""))), ""},
		"two resources":  {"memory=9Gi cpu=9", pod(has(container("c", "", ""))), "cpu for: c; memory for: c"},
		"limits":         {"limits.cpu=9 requests.memory=9Gi", pod(has(container("c", "memory=1", ""))), "limits.cpu for: c"},
		"two containers": {"cpu=9", pod(has(container("b", "", ""), container("a", "", ""), container("c", "cpu=1", ""))), "cpu for: a,b"},
		"init container": {"cpu=9", pod(has(container("c", "cpu=1", "")), starts(container("i", "", ""))), "cpu for: i"},
		"the pod says": {"cpu=9 memory=9Gi", pod(has(container("c", "", "")), func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=1")}
		}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: amounts(tc.hard)}}
			if got := MustSpecify(q, tc.pod); got != tc.want {
				t.Errorf("must specify %q, want %q", got, tc.want)
			}
		})
	}
}

func TestMoreThanBefore(t *testing.T) {
	for _, tc := range []struct{ now, before, want string }{
		{"cpu=2 pods=1", "", "cpu=2 pods=1"},
		{"cpu=2 pods=1", "cpu=1 pods=1", "cpu=1"},
		{"cpu=1", "cpu=2", ""},
		{"cpu=0", "", ""},
	} {
		if got := show(More(amounts(tc.now), amounts(tc.before))); got != tc.want {
			t.Errorf("%q after %q is %q more, want %q", tc.now, tc.before, got, tc.want)
		}
	}
}

func TestWhichObjectsAQuotaCounts(t *testing.T) {
	for name, want := range map[string]string{
		"pods": "pods", "cpu": "pods", "limits.memory": "pods", "requests.example.com/gpu": "pods", "hugepages-2Mi": "pods",
		"count/pods": "pods", "count/jobs.batch": "jobs.batch", "services": "services", "services.nodeports": "services",
		"services.loadbalancers": "services", "requests.storage": "persistentvolumeclaims", "persistentvolumeclaims": "persistentvolumeclaims",
		"gold.storageclass.storage.k8s.io/requests.storage": "persistentvolumeclaims", "configmaps": "configmaps", "replicationcontrollers": "replicationcontrollers", "count/deployments.apps": "deployments.apps",
		"secrets": "secrets", "resourcequotas": "resourcequotas", "requests.ephemeral-storage": "pods",
		"gpu.deviceclass.resource.k8s.io/devices": "resourceclaims.resource.k8s.io", "count/resourceclaims.resource.k8s.io": "resourceclaims.resource.k8s.io",
	} {
		if got := resourceOf(name); got != schema.ParseGroupResource(want) {
			t.Errorf("%s counts %s, want %s", name, got, want)
		}
	}
}
