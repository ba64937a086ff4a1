package apiserver

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

func networking(resource string) schema.GroupVersionResource {
	return networkingv1.SchemeGroupVersion.WithResource(resource)
}

func device(resource string) schema.GroupVersionResource {
	return resourcev1.SchemeGroupVersion.WithResource(resource)
}

func storageKind(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: resource}
}

// served is the rest of what is served, tried in the same way as workloads.
var served = []workload{
	{
		resource: networking("ingresses"), kind: "Ingress", short: "ing", reports: true,
		body:   `spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}`,
		status: `{loadBalancer: {ingress: [{ip: 10.0.0.1}]}}`,
		change: `spec: {rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]}`,
		frozen: `spec: {rules: [{http: {paths: [{path: x, backend: {service: {name: web, port: {number: 1}}}}]}}]}`, refusal: "spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified",
	},
	{
		resource: networking("ingressclasses"), kind: "IngressClass", reports: true, cluster: true,
		body:   `spec: {controller: example.com/c}`,
		change: `spec: {parameters: {kind: ConfigMap, name: x}}`,
		frozen: `spec: {controller: example.com/d}`, refusal: "spec.controller: Invalid value",
	},
	{
		resource: networking("networkpolicies"), kind: "NetworkPolicy", short: "netpol", reports: true,
		body:   `spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}`,
		change: `spec: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}`,
		frozen: `spec: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.1.0.0/16]}}]}]}`, refusal: "must be a strict subset of `cidr`",
	},
	{
		resource: networking("servicecidrs"), kind: "ServiceCIDR", cluster: true,
		body:   `spec: {cidrs: [10.200.0.0/16]}`,
		status: `{conditions: [{type: Ready, status: "True", reason: r, message: m, lastTransitionTime: "2026-11-22T10:00:00Z"}]}`,
		change: `spec: {cidrs: [10.200.0.0/16, "fd00::/112"]}`,
		frozen: `spec: {cidrs: [10.201.0.0/16, "fd00::/112"]}`, refusal: "spec.cidrs[0]: Invalid value",
	},
	{
		resource: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"), kind: "HorizontalPodAutoscaler", short: "hpa", reports: true,
		body:   `spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}`,
		status: `{currentReplicas: 2, desiredReplicas: 3}`,
		change: `spec: {behavior: {scaleDown: {stabilizationWindowSeconds: 60}}}`,
		frozen: `spec: {minReplicas: 9}`, refusal: "must be greater than or equal to `minReplicas`",
	},
	{
		resource: device("deviceclasses"), kind: "DeviceClass", reports: true, cluster: true,
		body:   `spec: {}`,
		change: `spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}`,
		frozen: `spec: {selectors: [{cel: {expression: 'device.colour == 1'}}]}`, refusal: "undefined field 'colour'",
	},
	{
		resource: device("resourceclaims"), kind: "ResourceClaim",
		body: `spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}`,
		status: `{allocation: {devices: {results: [{request: r, driver: gpu.example.com, pool: p, device: d}]}}, ` +
			`reservedFor: [{resource: pods, name: p, uid: u}]}`,
		change: `metadata: {labels: {colour: red}}`,
		frozen: `spec: {devices: {requests: [{name: s, exactly: {deviceClassName: c}}]}}`, refusal: "spec: Invalid value",
	},
	{
		resource: device("resourceclaimtemplates"), kind: "ResourceClaimTemplate",
		body:   `spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}}`,
		change: `metadata: {labels: {colour: red}}`,
		frozen: `spec: {spec: {devices: {requests: [{name: s, exactly: {deviceClassName: c}}]}}}`, refusal: "spec: Invalid value",
	},
	{
		resource: device("resourceslices"), kind: "ResourceSlice", reports: true, cluster: true,
		body:   `spec: {driver: gpu.example.com, nodeName: one, pool: {name: p, resourceSliceCount: 1}, devices: [{name: d, attributes: {a: {string: s}}}]}`,
		change: `spec: {devices: [{name: e, capacity: {memory: {value: 1Gi}}}]}`,
		frozen: `spec: {nodeName: two}`, refusal: "spec.nodeName: Invalid value",
	},
	{
		resource: device("devicetaintrules"), kind: "DeviceTaintRule", reports: true, cluster: true,
		body:   `spec: {deviceSelector: {driver: gpu.example.com}, taint: {key: example.com/broken, effect: NoSchedule}}`,
		status: `{conditions: [{type: EvictionInProgress, status: "False", reason: r, message: m, lastTransitionTime: "2026-11-22T10:00:00Z"}]}`,
		change: `spec: {taint: {effect: NoExecute}}`,
		frozen: `spec: {taint: {effect: Never}}`, refusal: "spec.taint.effect: Unsupported value",
	},
	{
		resource: flowcontrolv1.SchemeGroupVersion.WithResource("prioritylevelconfigurations"), kind: "PriorityLevelConfiguration", reports: true, cluster: true,
		body:   `spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 16}}}}`,
		status: `{conditions: [{type: Fine, status: "True", reason: r, message: m, lastTransitionTime: "2026-11-22T10:00:00Z"}]}`,
		change: `spec: {limited: {nominalConcurrencyShares: 7}}`,
		frozen: `spec: {type: Exempt}`, refusal: "must be 'Exempt' if and only if `name` is 'exempt'",
	},
	{
		resource: storageKind("csistoragecapacities"), kind: "CSIStorageCapacity",
		body:   `{storageClassName: fast, capacity: 1Gi}`,
		change: `capacity: 2Gi`,
		frozen: `storageClassName: slow`, refusal: "storageClassName: Invalid value",
	},
	{
		resource: storagemigrationv1.SchemeGroupVersion.WithResource("storageversionmigrations"), kind: "StorageVersionMigration", cluster: true,
		body:   `spec: {resource: {resource: secrets}}`,
		status: `{resourceVersion: "5"}`,
		change: `metadata: {labels: {colour: red}}`,
		frozen: `spec: {resource: {resource: pods}}`, refusal: "spec: Invalid value",
	},
	{
		resource: storageKind("volumeattributesclasses"), kind: "VolumeAttributesClass", short: "vac", cluster: true,
		body:   `{driverName: csi.example.com, parameters: {iops: "1"}}`,
		change: `metadata: {labels: {colour: red}}`,
		frozen: `parameters: {iops: "2"}`, refusal: "parameters: Forbidden: updates to parameters are forbidden.",
	},
}

func TestDefaultIngressClass(t *testing.T) {
	s := start(t)
	api := admin(t, s).NetworkingV1()
	class := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/c"}}
	make := func(name string, change func(*networkingv1.Ingress)) string {
		t.Helper()
		in := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{
			DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 1}}},
		}}
		change(in)
		out, err := api.Ingresses("default").Create(t.Context(), in, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if out.Spec.IngressClassName == nil {
			return ""
		}
		return *out.Spec.IngressClassName
	}
	if _, err := api.IngressClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	plain := func(*networkingv1.Ingress) {}
	if got := make("a", plain); got != "" {
		t.Errorf("class %q without a default", got)
	}
	class.Name, class.Annotations = "d", map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
	if _, err := api.IngressClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.IngressClasses().List(t.Context(), metav1.ListOptions{}); err != nil { // so that the cache has it
		t.Fatal(err)
	}
	if got := make("b", plain); got != "d" {
		t.Errorf("class %q, want the default", got)
	}
	if got := make("c", func(i *networkingv1.Ingress) { i.Spec.IngressClassName = new("c") }); got != "c" {
		t.Errorf("class %q, want the one that was named", got)
	}
	if got := make("d", func(i *networkingv1.Ingress) { i.Annotations = map[string]string{"kubernetes.io/ingress.class": "x"} }); got != "" {
		t.Errorf("class %q beside the annotation", got)
	}
}

func TestServiceRangeIsPublished(t *testing.T) {
	s := start(t)
	c, err := admin(t, s).NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Spec.CIDRs, []string{"10.96.0.0/12"}) || !meta.IsStatusConditionTrue(c.Status.Conditions, "Ready") {
		t.Errorf("%v, %+v", c.Spec.CIDRs, c.Status.Conditions)
	}
}

func TestComponentsAreHealthy(t *testing.T) {
	s := start(t)
	list, err := admin(t, s).CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, c.Name)
		if c.Name == "etcd-0" && c.Conditions[0].Status != corev1.ConditionTrue {
			t.Errorf("etcd: %+v", c.Conditions)
		}
	}
	if !slices.Equal(names, []string{"controller-manager", "etcd-0", "scheduler"}) {
		t.Errorf("components %v", names)
	}
}

const autoscalerV2 = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
spec:
  maxReplicas: 5
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics:
  - {type: Pods, pods: {metric: {name: rps}, target: {type: AverageValue, averageValue: 100}}}
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}
  behavior: {scaleDown: {policies: [{type: Pods, value: 1, periodSeconds: 60}]}}
`

// TestAutoscalerInTwoVersions: one object, whichever version it is written and read in.
func TestAutoscalerInTwoVersions(t *testing.T) {
	s := start(t)
	client := admin(t, s)
	ctx := t.Context()
	v1, v2 := client.AutoscalingV1().HorizontalPodAutoscalers("default"), client.AutoscalingV2().HorizontalPodAutoscalers("default")
	var a autoscalingv2.HorizontalPodAutoscaler
	if err := yaml.Unmarshal([]byte(autoscalerV2), &a); err != nil {
		t.Fatal(err)
	}
	made, err := v2.Create(ctx, &a, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *made.Spec.MinReplicas != 1 || made.Spec.Behavior.ScaleUp == nil || made.Generation != 1 {
		t.Errorf("defaults: %+v", made.Spec)
	}
	old, err := v1.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *old.Spec.TargetCPUUtilizationPercentage != 70 || !strings.Contains(old.Annotations["autoscaling.alpha.kubernetes.io/metrics"], `"metricName":"rps"`) ||
		!strings.Contains(old.Annotations["autoscaling.alpha.kubernetes.io/behavior"], `"ScaleDown":{`) {
		t.Errorf("as v1: %+v, %v", old.Spec, old.Annotations)
	}
	// A client of v1 changes what it knows, and keeps what it does not.
	old.Spec.MaxReplicas = 7
	if old, err = v1.Update(ctx, old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	now, err := v2.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.Spec.MaxReplicas != 7 || len(now.Spec.Metrics) != 2 || now.Spec.Behavior.ScaleDown.Policies[0].Value != 1 || len(now.Annotations) != 0 || now.Generation != 2 {
		t.Errorf("as v2, after an update in v1: %+v, %v", now.Spec, now.Annotations)
	}
	if old.ResourceVersion != now.ResourceVersion || old.UID != now.UID {
		t.Errorf("two objects: %s %s, %s %s", old.UID, old.ResourceVersion, now.UID, now.ResourceVersion)
	}
	watchedInBoth(t, client)
	if err := v1.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := v2.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted in v1, in v2: %v", err)
	}
	if _, err := v1.Create(ctx, &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 2, ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "w"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if now, err = v2.Get(ctx, "b", metav1.GetOptions{}); err != nil || *now.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 {
		t.Errorf("without a metric: %v, %+v", err, now)
	}
}

func watchedInBoth(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	opts := metav1.ListOptions{FieldSelector: "metadata.name=a"}
	old, err := client.AutoscalingV1().HorizontalPodAutoscalers("default").Watch(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Stop()
	if a, ok := (<-old.ResultChan()).Object.(*autoscalingv1.HorizontalPodAutoscaler); !ok || a.Annotations["autoscaling.alpha.kubernetes.io/metrics"] == "" {
		t.Errorf("watched in v1: %+v", a)
	}
	list, err := client.AutoscalingV1().HorizontalPodAutoscalers("default").List(t.Context(), opts)
	if err != nil || len(list.Items) != 1 || *list.Items[0].Spec.TargetCPUUtilizationPercentage != 70 {
		t.Errorf("listed in v1: %v, %+v", err, list)
	}
}

// TestAutoscalerIsAppliedInEitherVersion: a field has one owner, whichever version it was applied in.
func TestAutoscalerIsAppliedInEitherVersion(t *testing.T) {
	s := start(t)
	client := admin(t, s)
	apply := func(version, manager, body string) error {
		data, err := yaml.YAMLToJSON([]byte("apiVersion: autoscaling/" + version + "\nkind: HorizontalPodAutoscaler\nmetadata: {name: a}\n" + body))
		if err != nil {
			t.Fatal(err)
		}
		return client.CoreV1().RESTClient().Patch(types.ApplyPatchType).
			AbsPath("/apis/autoscaling/"+version+"/namespaces/default/horizontalpodautoscalers/a").
			Param("fieldManager", manager).Body(data).Do(t.Context()).Error()
	}
	target := `scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}`
	if err := apply("v2", "one", "spec: {maxReplicas: 5, "+target+"}"); err != nil {
		t.Fatal(err)
	}
	if err := apply("v1", "two", "spec: {maxReplicas: 6, "+target+"}"); !apierrors.IsConflict(err) {
		t.Errorf("another size by another manager: %v", err)
	}
	if err := apply("v1", "two", "spec: {minReplicas: 2, maxReplicas: 5, "+target+"}"); err != nil {
		t.Errorf("the same size: %v", err)
	}
	if err := apply("v1", "one", "spec: {maxReplicas: 5, "+target+"}"); err != nil {
		t.Errorf("the same manager in the other version: %v", err)
	}
	a, err := client.AutoscalingV2().HorizontalPodAutoscalers("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var owners []string
	for _, m := range a.ManagedFields {
		owners = append(owners, m.Manager+" "+m.APIVersion)
	}
	slices.Sort(owners)
	if *a.Spec.MinReplicas != 2 || a.Spec.MaxReplicas != 5 || !slices.Equal(owners, []string{"one autoscaling/v1", "two autoscaling/v1"}) {
		t.Errorf("%+v, owners %q", a.Spec, owners)
	}
}

// TestAutoscalerIsStoredAsV2: what is stored does not depend on the version of the request, so that
// v1 can go some day.
func TestAutoscalerIsStoredAsV2(t *testing.T) {
	s := start(t)
	v1 := admin(t, s).AutoscalingV1().HorizontalPodAutoscalers("default")
	_, err := v1.Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 2, ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "w"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store := s.store("autoscaling", "horizontalpodautoscalers")
	if gv, err := json.Marshal(store.StorageVersion()); err != nil || !strings.Contains(string(gv), "v2") {
		t.Errorf("stored as %s: %v", gv, err)
	}
}

// TestDevicesOfOthers: a claim cannot give itself devices, report them, or look at those of others.
func TestDevicesOfOthers(t *testing.T) {
	s := start(t)
	client, ctx := admin(t, s), t.Context()
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "x", AdminAccess: new(true)}}},
	}}}
	_, err := client.ResourceV1().ResourceClaims("default").Create(ctx, claim, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace") {
		t.Errorf("admin access: %v", err)
	}
	claim.Spec.Devices.Requests[0].Exactly.AdminAccess = nil
	claim, err = client.ResourceV1().ResourceClaims("default").Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	result := resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "gpu.example.com", Pool: "p", Device: "d"}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{result}}}
	// The garbage collector may update everything, but not bind claims.
	cfg := s.ClientConfig("system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccounts")
	stranger, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	status := claim.DeepCopy()
	if _, err = client.ResourceV1().ResourceClaims("default").UpdateStatus(ctx, status, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scheduler, err := kubernetes.NewForConfig(s.ClientConfig("system:kube-scheduler"))
	if err != nil {
		t.Fatal(err)
	}
	report := func(client kubernetes.Interface) error {
		now, err := client.ResourceV1().ResourceClaims("default").Get(ctx, "c", metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "p", Device: "d"}}
		_, err = client.ResourceV1().ResourceClaims("default").UpdateStatus(ctx, now, metav1.UpdateOptions{})
		return err
	}
	if err := report(scheduler); err == nil || !strings.Contains(err.Error(), `requires resource="resourceclaims/driver"`) {
		t.Errorf("a report by one who is no driver: %v", err)
	}
	if err := errors.Join(report(client), report(stranger)); err != nil {
		t.Errorf("reports by those who may all: %v", err)
	}
}
