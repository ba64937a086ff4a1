package printers

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNetworkColumns(t *testing.T) {
	in := read[networkingv1.Ingress](t, `{metadata: {name: w}, spec: {rules: [{host: a}, {host: b}, {host: c}, {host: d}], tls: [{}]}, status: {loadBalancer: {ingress: [{ip: 10.0.0.2}, {hostname: a.example}, {ip: 10.0.0.2}]}}}`)
	equal(t, Ingresses.Cells(in, now), []any{"w", "<none>", "a,b,c + 1 more...", "10.0.0.2,a.example", "80, 443", "<unknown>"})
	in = read[networkingv1.Ingress](t, `{metadata: {name: w}, spec: {ingressClassName: c, rules: [{}]}}`)
	equal(t, Ingresses.Cells(in, now), []any{"w", "c", "*", "", "80", "<unknown>"})
	class := read[networkingv1.IngressClass](t, `{metadata: {name: c, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}, spec: {controller: x/y, parameters: {apiGroup: g, kind: K, name: p}}}`)
	equal(t, IngressClasses.Cells(class, now), []any{"c (default)", "x/y", "K.g/p", "<unknown>"})
	policy := read[networkingv1.NetworkPolicy](t, `{metadata: {name: p}, spec: {podSelector: {matchLabels: {a: b}}}}`)
	equal(t, NetworkPolicies.Cells(policy, now), []any{"p", "a=b", "<unknown>"})
	cidr := read[networkingv1.ServiceCIDR](t, `{metadata: {name: c}, spec: {cidrs: [10.0.0.0/8, "fd00::/112"]}}`)
	equal(t, ServiceCIDRs.Cells(cidr, now), []any{"c", "10.0.0.0/8,fd00::/112", "<unknown>"})
	address := read[networkingv1.IPAddress](t, `{metadata: {name: 10.0.0.1}, spec: {parentRef: {resource: services, namespace: default, name: s}}}`)
	equal(t, IPAddresses.Cells(address, now), []any{"10.0.0.1", "services/default/s"})
}

func TestStorageMigrationColumns(t *testing.T) {
	m := read[storagemigrationv1.StorageVersionMigration](t, `{metadata: {name: m}, spec: {resource: {group: example.com, resource: widgets}}}`)
	equal(t, StorageVersionMigrations.Cells(m, now), []any{"m", "widgets.example.com", "Unknown"})
	m.Spec.Resource = metav1.GroupResource{Resource: "secrets"}
	m.Status.Conditions = []metav1.Condition{{Type: "Running", Status: metav1.ConditionFalse}, {Type: "Succeeded", Status: metav1.ConditionTrue}}
	equal(t, StorageVersionMigrations.Cells(m, now), []any{"m", "secrets", "Succeeded"})
}

func TestFlowControlColumns(t *testing.T) {
	schema := read[flowcontrolv1.FlowSchema](t, `{metadata: {name: s}, spec: {matchingPrecedence: 5, priorityLevelConfiguration: {name: l}}}`)
	equal(t, FlowSchemas.Cells(schema, now), []any{"s", "l", int64(5), "<none>", "<unknown>", "?"})
	schema.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType}
	schema.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse}}
	equal(t, FlowSchemas.Cells(schema, now), []any{"s", "l", int64(5), "ByUser", "<unknown>", "False"})
	level := read[flowcontrolv1.PriorityLevelConfiguration](t, `{metadata: {name: l}, spec: {type: Exempt}}`)
	equal(t, PriorityLevelConfigurations.Cells(level, now), []any{"l", "Exempt", "<none>", "<none>", "<none>", "<none>", "<unknown>"})
	level = read[flowcontrolv1.PriorityLevelConfiguration](t, `{metadata: {name: l}, spec: {type: Limited, limited: {nominalConcurrencyShares: 7, limitResponse: {type: Queue, queuing: {queues: 3, handSize: 2, queueLengthLimit: 1}}}}}`)
	equal(t, PriorityLevelConfigurations.Cells(level, now), []any{"l", "Limited", int64(7), int64(3), int64(2), int64(1), "<unknown>"})
}

func TestDeviceColumns(t *testing.T) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	for _, want := range []string{"pending", "allocated", "allocated,reserved", "deleted,allocated,reserved"} {
		switch want {
		case "allocated":
			claim.Status.Allocation = &resourcev1.AllocationResult{}
		case "allocated,reserved":
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{}}
		case "deleted,allocated,reserved":
			claim.DeletionTimestamp = new(metav1.NewTime(now))
		}
		equal(t, ResourceClaims.Cells(claim, now), []any{"c", want, "<unknown>"})
	}
	slice := read[resourcev1.ResourceSlice](t, `{metadata: {name: s}, spec: {driver: d, nodeName: one, pool: {name: p, generation: 1, resourceSliceCount: 1}}}`)
	equal(t, ResourceSlices.Cells(slice, now), []any{"s", "one", "d", "p", "<unknown>"})
	capacity := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "c"}, StorageClassName: "fast"}
	equal(t, CSIStorageCapacities.Cells(capacity, now), []any{"c", "fast", "<unset>"})
	capacity.Capacity = new(resource.MustParse("1Gi"))
	equal(t, CSIStorageCapacities.Cells(capacity, now), []any{"c", "fast", "1Gi"})
	equal(t, VolumeAttributesClasses.Cells(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "v"}, DriverName: "d"}, now), []any{"v", "d", "<unknown>"})
	health := &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: "etcd-0"}}
	equal(t, ComponentStatuses.Cells(health, now), []any{"etcd-0", "Unknown", "", ""})
	health.Conditions = []corev1.ComponentCondition{{Type: corev1.ComponentHealthy, Status: corev1.ConditionFalse, Error: "no"}}
	equal(t, ComponentStatuses.Cells(health, now), []any{"etcd-0", "Unhealthy", "", "no"})
}

func TestAutoscalerColumns(t *testing.T) {
	a := read[autoscalingv2.HorizontalPodAutoscaler](t, `
metadata: {name: a}
spec:
  scaleTargetRef: {kind: Deployment, name: w}
  minReplicas: 2
  maxReplicas: 9
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
  - {type: External, external: {metric: {name: q}, target: {type: AverageValue, averageValue: 100}}}
status: {currentReplicas: 3, desiredReplicas: 3, currentMetrics: [{type: Resource, resource: {name: cpu, current: {averageUtilization: 40}}}]}`)
	equal(t, HorizontalPodAutoscalers.Cells(a, now), []any{"a", "Deployment/w", "cpu: 40%/50%, <unknown>/100 (avg)", "2", int64(9), int64(3), "<unknown>"})
	a.Spec.Metrics = append(a.Spec.Metrics, *read[autoscalingv2.MetricSpec](t, `{type: Pods, pods: {metric: {name: r}, target: {type: AverageValue, averageValue: 1}}}`))
	if got := HorizontalPodAutoscalers.Cells(a, now)[2]; got != "cpu: 40%/50%, <unknown>/100 (avg) + 1 more..." {
		t.Error(got)
	}
	for want, m := range map[string]string{
		"<unknown>/1":           `{type: Pods, pods: {metric: {name: r}, target: {type: AverageValue, averageValue: 1}}}`,
		"<unknown>/2":           `{type: Object, object: {describedObject: {kind: K, name: n}, metric: {name: r}, target: {type: Value, value: 2}}}`,
		"memory: <unknown>/1Gi": `{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1Gi}}}`,
		"cpu: <unknown>/<auto>": `{type: ContainerResource, containerResource: {name: cpu, container: c, target: {type: Utilization}}}`,
		"<unknown type>":        `{type: Luck}`,
	} {
		if got := metrics([]autoscalingv2.MetricSpec{*read[autoscalingv2.MetricSpec](t, m)}, nil); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
