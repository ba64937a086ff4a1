package defaults

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// filled is what becomes of a template with one container.
const filled = `
    spec:
      containers: [{name: c, image: "i:1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}]
      dnsPolicy: ClusterFirst
      restartPolicy: Always
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
`

// defaulted checks what f makes of an object, and that doing it again changes nothing.
func defaulted[T any](t *testing.T, name string, f func(*T), before, after string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		obj, want := decode[T](t, before), decode[T](t, after)
		f(obj)
		same(t, obj, want)
		f(obj)
		same(t, obj, want)
	})
}

func TestWorkloadDefaults(t *testing.T) {
	defaulted[appsv1.ReplicaSet](t, "replica set", ReplicaSet, `spec: {template: {spec: {containers: [{name: c, image: "i:1"}]}}}`, `
spec:
  replicas: 1
  template:`+filled)
	defaulted[appsv1.Deployment](t, "deployment", Deployment, `spec: {template: {spec: {containers: [{name: c, image: "i:1"}]}}}`, `
spec:
  replicas: 1
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%, maxSurge: 25%}}
  revisionHistoryLimit: 10
  progressDeadlineSeconds: 600
  template:`+filled)
	defaulted[appsv1.Deployment](t, "deployment that recreates", Deployment,
		`spec: {replicas: 0, strategy: {type: Recreate}, revisionHistoryLimit: 0, progressDeadlineSeconds: 7, template: {spec: {containers: [{name: c, image: "i:1"}]}}}`, `
spec:
  replicas: 0
  strategy: {type: Recreate}
  revisionHistoryLimit: 0
  progressDeadlineSeconds: 7
  template:`+filled)
	const rest = `template: {spec: {containers: [{name: c, image: "i:1"}]}}`
	defaulted[appsv1.DaemonSet](t, "daemon set", DaemonSet, `spec: {`+rest+`}`, `
spec:
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}
  revisionHistoryLimit: 10
  template:`+filled)
	defaulted[appsv1.DaemonSet](t, "daemon set by hand", DaemonSet, `spec: {updateStrategy: {type: OnDelete}, `+rest+`}`, `
spec:
  updateStrategy: {type: OnDelete}
  revisionHistoryLimit: 10
  template:`+filled)
	defaulted[appsv1.StatefulSet](t, "stateful set", StatefulSet, `spec: {volumeClaimTemplates: [{metadata: {name: v}}], `+rest+`}`, `
spec:
  replicas: 1
  podManagementPolicy: OrderedReady
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0, maxUnavailable: 1}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  revisionHistoryLimit: 10
  volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: v}, spec: {volumeMode: Filesystem}, status: {phase: Pending}}]
  template:`+filled)
	defaulted[appsv1.StatefulSet](t, "stateful set with a strategy", StatefulSet, `spec: {updateStrategy: {type: RollingUpdate}, `+rest+`}`, `
spec:
  replicas: 1
  podManagementPolicy: OrderedReady
  updateStrategy: {type: RollingUpdate}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  revisionHistoryLimit: 10
  template:`+filled)
}

func TestReplicationControllerDefaults(t *testing.T) {
	const rest = `spec: {containers: [{name: c, image: "i:1"}]}`
	defaulted[corev1.ReplicationController](t, "selector", ReplicationController, `spec: {template: {metadata: {labels: {a: b}}, `+rest+`}}`, `
metadata: {labels: {a: b}}
spec:
  replicas: 1
  selector: {a: b}
  template:
    metadata: {labels: {a: b}}`+filled)
	defaulted[corev1.ReplicationController](t, "no template", ReplicationController, `spec: {replicas: 0}`, `spec: {replicas: 0}`)
	defaulted[corev1.PodTemplate](t, "template", PodTemplate, `template: {`+rest+`}`, `
  template:`+filled)
}

func TestBatchDefaults(t *testing.T) {
	const (
		template = `template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: "i:1"}]}}`
		made     = `
    metadata: {labels: {a: b}}` + filled
	)
	defaulted[batchv1.Job](t, "job", Job, `spec: {`+template+`}`, `
metadata: {labels: {a: b}}
spec:
  backoffLimit: 6
  completionMode: NonIndexed
  completions: 1
  manualSelector: false
  parallelism: 1
  podReplacementPolicy: TerminatingOrFailed
  suspend: false
  template:`+made)
	defaulted[batchv1.Job](t, "indexed job", Job, `
metadata: {labels: {c: d}}
spec: {parallelism: 2, completionMode: Indexed, backoffLimitPerIndex: 1, podFailurePolicy: {rules: [{action: Count, onPodConditions: [{type: x}]}]}, `+template+`}`, `
metadata: {labels: {c: d}}
spec:
  backoffLimit: 2147483647
  backoffLimitPerIndex: 1
  completionMode: Indexed
  manualSelector: false
  parallelism: 2
  podFailurePolicy: {rules: [{action: Count, onPodConditions: [{type: x, status: "True"}]}]}
  podReplacementPolicy: Failed
  suspend: false
  template:`+made)
	defaulted[batchv1.CronJob](t, "cron job", CronJob, `spec: {schedule: "* * * * *", jobTemplate: {spec: {`+template+`}}}`, `
spec:
  schedule: "* * * * *"
  concurrencyPolicy: Allow
  failedJobsHistoryLimit: 1
  successfulJobsHistoryLimit: 3
  suspend: false
  jobTemplate:
   spec:
    template:
     metadata: {labels: {a: b}}
     spec:
      containers: [{name: c, image: "i:1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}]
      dnsPolicy: ClusterFirst
      restartPolicy: Always
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
`)
}

func TestAutoscalersAndClaims(t *testing.T) {
	a := &autoscalingv2.HorizontalPodAutoscaler{}
	HorizontalPodAutoscaler(a)
	if *a.Spec.MinReplicas != 1 || *a.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 || a.Spec.Behavior != nil {
		t.Errorf("%+v", a.Spec)
	}
	a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(7))}}
	HorizontalPodAutoscaler(a)
	up, down := a.Spec.Behavior.ScaleUp, a.Spec.Behavior.ScaleDown
	if len(up.Policies) != 2 || *up.StabilizationWindowSeconds != 0 || *up.SelectPolicy != autoscalingv2.MaxChangePolicySelect ||
		len(down.Policies) != 1 || down.Policies[0].Value != 100 || *down.StabilizationWindowSeconds != 7 {
		t.Errorf("up %+v, down %+v", up, down)
	}
	c := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
		{Exactly: &resourcev1.ExactDeviceRequest{Tolerations: []resourcev1.DeviceToleration{{Key: "k"}}}}, {FirstAvailable: []resourcev1.DeviceSubRequest{{AllocationMode: resourcev1.DeviceAllocationModeAll}}},
	}}}}
	ResourceClaim(c)
	if e := c.Spec.Devices.Requests[0].Exactly; e.Count != 1 || e.AllocationMode != resourcev1.DeviceAllocationModeExactCount ||
		e.Tolerations[0].Operator != resourcev1.DeviceTolerationOpEqual {
		t.Errorf("%+v", e)
	}
	if s := c.Spec.Devices.Requests[1].FirstAvailable[0]; s.Count != 0 {
		t.Errorf("all of them, and %d", s.Count)
	}
	known := metav1.Unix(1, 0)
	s := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Taints: []resourcev1.DeviceTaint{{}, {TimeAdded: &known}}}}}}
	ResourceSlice(s)
	if taints := s.Spec.Devices[0].Taints; taints[0].TimeAdded == nil || !taints[1].TimeAdded.Equal(&known) {
		t.Errorf("%+v", taints)
	}
}
