package validation

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/defaults"
)

func appSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
}

func appTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// templateCase is a change of a pod template that workloads refuse.
type templateCase struct {
	name   string
	change func(*corev1.PodTemplateSpec)
	want   []string
}

// templateCases are what every workload refuses.
var templateCases = []templateCase{
	{"fine", func(*corev1.PodTemplateSpec) {}, nil},
	{"other labels", func(t *corev1.PodTemplateSpec) { t.Labels = map[string]string{"app": "b"} },
		[]string{"spec.template.metadata.labels: Invalid value: {\"app\":\"b\"}: `selector` does not match template `labels`"}},
	{"no container", func(t *corev1.PodTemplateSpec) { t.Spec.Containers = nil }, []string{"spec.template.spec.containers: Required value"}},
	{"label", func(t *corev1.PodTemplateSpec) { t.Labels["b"] = "c d" }, []string{`spec.template.labels: Invalid value: "c d"`}},
	{"annotation", func(t *corev1.PodTemplateSpec) { t.Annotations = map[string]string{"a b": ""} }, []string{`spec.template.annotations: Invalid value: "a b"`}},
	{"debug container", func(t *corev1.PodTemplateSpec) {
		t.Spec.EphemeralContainers = []corev1.EphemeralContainer{debugContainer("d")}
	}, []string{"spec.template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"}},
}

// runsForEverCases are what the workloads refuse whose pods do not end.
func runsForEverCases(kind string) []templateCase {
	return append([]templateCase{
		{"restarts", func(t *corev1.PodTemplateSpec) { t.Spec.RestartPolicy = corev1.RestartPolicyNever },
			[]string{`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`}},
		{"deadline", func(t *corev1.PodTemplateSpec) { t.Spec.ActiveDeadlineSeconds = new(int64(5)) },
			[]string{"spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in " + kind + " is not Supported"}},
	}, templateCases...)
}

func newReplicaSet() *appsv1.ReplicaSet {
	r := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: appSelector(), Template: appTemplate()}}
	defaults.ReplicaSet(r)
	return r
}

func newDeployment() *appsv1.Deployment {
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: appSelector(), Template: appTemplate()}}
	defaults.Deployment(d)
	return d
}

func TestReplicaSets(t *testing.T) {
	for _, tc := range runsForEverCases("ReplicaSet") {
		t.Run(tc.name, func(t *testing.T) {
			r := newReplicaSet()
			tc.change(&r.Spec.Template)
			check(t, ReplicaSet(r), tc.want...)
		})
	}
	r := newReplicaSet()
	r.Spec.Replicas, r.Spec.MinReadySeconds, r.Spec.Selector = new(int32(-1)), -2, nil
	check(t, ReplicaSet(r),
		"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
		"spec.minReadySeconds: Invalid value: -2: must be greater than or equal to 0",
		"spec.selector: Required value",
		"spec.template.metadata.labels: Invalid value")
	r = newReplicaSet()
	r.Spec.Selector = &metav1.LabelSelector{}
	check(t, ReplicaSet(r), "spec.selector: Invalid value: {}: empty selector is invalid for deployment")
	r.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	check(t, ReplicaSet(r),
		`spec.selector.matchExpressions[0].operator: Invalid value: "Near": not a valid selector operator`,
		`spec.selector: Invalid value: {"matchExpressions":[{"key":"a","operator":"Near"}]}: invalid label selector`)
	r = newReplicaSet()
	r.Spec.Selector.MatchLabels["b"], r.Spec.Template.Labels["b"] = "c", "c"
	check(t, ReplicaSetUpdate(r, newReplicaSet()), `spec.selector: Invalid value: {"matchLabels":{"app":"a","b":"c"}}: field is immutable`)
	r.Status = appsv1.ReplicaSetStatus{Replicas: 1, FullyLabeledReplicas: 2, ReadyReplicas: 3, AvailableReplicas: 4, TerminatingReplicas: new(int32(-1)), ObservedGeneration: -1}
	check(t, ReplicaSetStatus(r),
		"status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.readyReplicas: Invalid value: 3: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 4: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 4: cannot be greater than readyReplicas",
		"status.observedGeneration: Invalid value: -1", "status.terminatingReplicas: Invalid value: -1")
}

func TestDeployments(t *testing.T) {
	for _, tc := range runsForEverCases("ReplicaSet") {
		t.Run(tc.name, func(t *testing.T) {
			d := newDeployment()
			tc.change(&d.Spec.Template)
			check(t, Deployment(d), tc.want...)
		})
	}
	rolling := func(unavailable, surge intstr.IntOrString) func(*appsv1.DeploymentSpec) {
		return func(s *appsv1.DeploymentSpec) {
			s.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &unavailable, MaxSurge: &surge}
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*appsv1.DeploymentSpec)
		want   []string
	}{
		{"numbers", func(s *appsv1.DeploymentSpec) {
			s.Replicas, s.MinReadySeconds, s.RevisionHistoryLimit, s.ProgressDeadlineSeconds = new(int32(-1)), -9, new(int32(-2)), new(int32(-3))
		}, []string{
			"spec.replicas: Invalid value: -1", "spec.minReadySeconds: Invalid value: -9", "spec.revisionHistoryLimit: Invalid value: -2", "spec.progressDeadlineSeconds: Invalid value: -3"}},
		{"deadline", func(s *appsv1.DeploymentSpec) { s.MinReadySeconds = 600 },
			[]string{"spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"}},
		{"strategy", func(s *appsv1.DeploymentSpec) {
			s.Strategy = appsv1.DeploymentStrategy{Type: "Pray"}
		}, []string{`spec.strategy: Unsupported value: {"type":"Pray"}: supported values: "Recreate", "RollingUpdate"`}},
		{"recreate", func(s *appsv1.DeploymentSpec) { s.Strategy.Type = appsv1.RecreateDeploymentStrategyType },
			[]string{"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"}},
		{"no room to move", rolling(intstr.FromInt32(0), intstr.FromString("0%")),
			[]string{"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"}},
		{"more than all", rolling(intstr.FromString("101%"), intstr.FromString("200%")),
			[]string{`spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%`}},
		{"no percentages", rolling(intstr.FromString("a lot"), intstr.FromInt32(-1)),
			[]string{`spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "a lot": a valid percent string must be a numeric string followed by an ending '%'`,
				"spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0"}},
		{"surge alone", rolling(intstr.FromInt32(0), intstr.FromInt32(1)), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDeployment()
			tc.change(&d.Spec)
			check(t, Deployment(d), tc.want...)
		})
	}
	d, old := newDeployment(), newDeployment()
	old.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "old"}}
	old.Status.CollisionCount = new(int32(2))
	check(t, DeploymentUpdate(d, old), `spec.selector: Invalid value: {"matchLabels":{"app":"a"}}: field is immutable`)
	check(t, DeploymentStatusUpdate(d, old), "status.collisionCount: Invalid value: 0: cannot be decremented")
	d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 2, ReadyReplicas: 1, AvailableReplicas: 2, CollisionCount: new(int32(1))}
	check(t, DeploymentStatusUpdate(d, old),
		"status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
		"status.collisionCount: Invalid value: 1: cannot be decremented")
}

func newDaemonSet() *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: appSelector(), Template: appTemplate()}}
	defaults.DaemonSet(d)
	return d
}

func TestDaemonSets(t *testing.T) {
	for _, tc := range runsForEverCases("DaemonSet") {
		t.Run(tc.name, func(t *testing.T) {
			d := newDaemonSet()
			tc.change(&d.Spec.Template)
			check(t, DaemonSet(d), tc.want...)
		})
	}
	rolling := func(unavailable, surge intstr.IntOrString) func(*appsv1.DaemonSetSpec) {
		return func(s *appsv1.DaemonSetSpec) {
			s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable, MaxSurge: &surge}
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*appsv1.DaemonSetSpec)
		want   []string
	}{
		{"no selector", func(s *appsv1.DaemonSetSpec) { s.Selector = nil }, []string{"spec.template.metadata.labels: Invalid value"}},
		{"empty selector", func(s *appsv1.DaemonSetSpec) { s.Selector = &metav1.LabelSelector{} },
			[]string{"spec.selector: Invalid value: {}: empty selector is invalid for daemonset"}},
		{"numbers", func(s *appsv1.DaemonSetSpec) { s.MinReadySeconds, s.RevisionHistoryLimit = -1, new(int32(-2)) },
			[]string{"spec.minReadySeconds: Invalid value: -1", "spec.revisionHistoryLimit: Invalid value: -2"}},
		{"strategy", func(s *appsv1.DaemonSetSpec) { s.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: "Pray"} },
			[]string{`spec.updateStrategy: Unsupported value: {"type":"Pray"}: supported values: "RollingUpdate", "OnDelete"`}},
		{"by hand", func(s *appsv1.DaemonSetSpec) { s.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: "OnDelete"} }, nil},
		{"both", rolling(intstr.FromInt32(1), intstr.FromInt32(1)),
			[]string{"spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"}},
		{"neither", rolling(intstr.FromInt32(0), intstr.FromString("0%")),
			[]string{"spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"}},
		{"surge", rolling(intstr.FromInt32(0), intstr.FromString("101%")),
			[]string{`spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: "101%": must not be greater than 100%`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDaemonSet()
			tc.change(&d.Spec)
			check(t, DaemonSet(d), tc.want...)
		})
	}
	d, old := newDaemonSet(), newDaemonSet()
	old.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "old"}}
	old.Status.CollisionCount = new(int32(2))
	check(t, DaemonSetUpdate(d, old), `spec.selector: Invalid value: {"matchLabels":{"app":"a"}}: field is immutable`)
	d.Status.NumberReady = -1
	check(t, DaemonSetStatusUpdate(d, old), "status.numberReady: Invalid value: -1", "status.collisionCount: Invalid value: 0: cannot be decremented")
}

func newStatefulSet() *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: appSelector(), Template: appTemplate(), ServiceName: "s"}}
	defaults.StatefulSet(s)
	return s
}

func TestStatefulSets(t *testing.T) {
	for _, tc := range runsForEverCases("StatefulSet") {
		t.Run(tc.name, func(t *testing.T) {
			s := newStatefulSet()
			tc.change(&s.Spec.Template)
			check(t, StatefulSet(s), tc.want...)
		})
	}
	for _, tc := range []struct {
		name   string
		change func(*appsv1.StatefulSetSpec)
		want   []string
	}{
		{"policies", func(s *appsv1.StatefulSetSpec) {
			s.PodManagementPolicy, s.UpdateStrategy.Type = "Wild", "Pray"
			s.PersistentVolumeClaimRetentionPolicy.WhenScaled = "Ask"
		}, []string{
			`spec.podManagementPolicy: Invalid value: "Wild": must be 'OrderedReady' or 'Parallel'`,
			`spec.updateStrategy: Invalid value: {"type":"Pray","rollingUpdate":{"partition":0,"maxUnavailable":1}}: must be 'RollingUpdate' or 'OnDelete'`,
			`spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "Ask": supported values: "Delete", "Retain"`}},
		{"none", func(s *appsv1.StatefulSetSpec) { s.PodManagementPolicy, s.UpdateStrategy.Type = "", "" },
			[]string{"spec.podManagementPolicy: Required value", "spec.updateStrategy: Required value"}},
		{"by hand", func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.Type = "OnDelete" },
			[]string{`spec.updateStrategy.rollingUpdate: Invalid value: {"partition":0,"maxUnavailable":1}: only allowed for updateStrategy 'RollingUpdate'`}},
		{"rolling", func(s *appsv1.StatefulSetSpec) {
			s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(-1)), MaxUnavailable: new(intstr.FromInt32(0))}
		}, []string{"spec.updateStrategy.rollingUpdate.partition: Invalid value: -1", "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0"}},
		{"numbers", func(s *appsv1.StatefulSetSpec) {
			s.Replicas, s.MinReadySeconds, s.Ordinals = new(int32(-1)), -2, &appsv1.StatefulSetOrdinals{Start: -3}
		}, []string{"spec.replicas: Invalid value: -1", "spec.minReadySeconds: Invalid value: -2", "spec.ordinals.start: Invalid value: -3"}},
		{"no selector", func(s *appsv1.StatefulSetSpec) { s.Selector = nil }, []string{"spec.selector: Required value", "spec.template.metadata.labels: Invalid value"}},
		{"empty selector", func(s *appsv1.StatefulSetSpec) { s.Selector = &metav1.LabelSelector{} },
			[]string{"spec.selector: Invalid value: {}: empty selector is invalid for statefulset"}},
		{"service", func(s *appsv1.StatefulSetSpec) { s.ServiceName = "A" }, []string{`spec.serviceName: Invalid value: "A"`}},
		{"claim", func(s *appsv1.StatefulSetSpec) { s.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, 1) },
			[]string{"spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required", "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
				"spec.template.spec.volumes[0].name: Required value", "spec.template.spec.volumes[0].persistentVolumeClaim.claimName: Required value"}},
		{"what the controller sets", func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Hostname, s.Template.Spec.Subdomain = "A", "B" }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStatefulSet()
			tc.change(&s.Spec)
			check(t, StatefulSet(s), tc.want...)
		})
	}
}

func TestVolumesOfAStatefulSetAreItsClaims(t *testing.T) {
	s := newStatefulSet()
	mounts := &s.Spec.Template.Spec.Containers[0].VolumeMounts
	*mounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	check(t, StatefulSet(s), `spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"`)
	s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}}}
	s.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	check(t, StatefulSet(s))
}

func TestWhatAStatefulSetMayChange(t *testing.T) {
	s, old := newStatefulSet(), newStatefulSet()
	s.Spec.Replicas, s.Spec.MinReadySeconds, s.Spec.RevisionHistoryLimit = new(int32(5)), 5, new(int32(5))
	s.Spec.Template.Spec.Containers[0].Image = "j"
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1}
	s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	check(t, StatefulSetUpdate(s, old))
	s.Spec.ServiceName = "other"
	check(t, StatefulSetUpdate(s, old), `spec.serviceName: Invalid value: "other": field is immutable`)

	invalid := newStatefulSet()
	invalid.Spec.Template.Spec.Containers[0].Image = ""
	check(t, StatefulSetUpdate(invalid, invalid))
	check(t, StatefulSetUpdate(invalid, old), "spec.template.spec.containers[0].image: Required value")

	old.Status.CollisionCount = new(int32(1))
	s.Status = appsv1.StatefulSetStatus{Replicas: 1, ReadyReplicas: 1, CurrentReplicas: 2, UpdatedReplicas: 3, AvailableReplicas: 4, ObservedGeneration: -1, CollisionCount: new(int32(1))}
	check(t, StatefulSetStatusUpdate(s, old),
		"status.observedGeneration: Invalid value: -1",
		"status.currentReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.updatedReplicas: Invalid value: 3: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 4: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 4: cannot be greater than status.readyReplicas")
}

func TestControllerRevisions(t *testing.T) {
	revision := func(n int64, data string) *appsv1.ControllerRevision {
		r := &appsv1.ControllerRevision{Revision: n}
		if data != "" {
			r.Data.Raw = []byte(data)
		}
		return r
	}
	check(t, ControllerRevision(revision(1, `{"a":1}`)))
	check(t, ControllerRevision(revision(-1, "")), "revision: Invalid value: -1", "data: Required value: data is mandatory")
	check(t, ControllerRevision(revision(1, "null")), "data: Required value: data is mandatory")
	check(t, ControllerRevision(revision(1, "[]")), "data: Required value: data must be a valid JSON object")
	check(t, ControllerRevision(revision(1, "{")), `data: Invalid value: "<value omitted>": error parsing data: unexpected end of JSON input`)
	check(t, ControllerRevisionUpdate(revision(2, `{"a":1}`), revision(1, `{"a":1}`)))
	check(t, ControllerRevisionUpdate(revision(2, `{"a":2}`), revision(1, `{"a":1}`)), "data: Invalid value: {\"a\":2}: field is immutable")
}

func newReplicationController() *corev1.ReplicationController {
	r := &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Template: new(appTemplate())}}
	defaults.ReplicationController(r)
	return r
}

func TestReplicationControllers(t *testing.T) {
	for _, tc := range runsForEverCases("ReplicationController") {
		t.Run(tc.name, func(t *testing.T) {
			r := newReplicationController()
			tc.change(r.Spec.Template)
			check(t, ReplicationController(r), tc.want...)
		})
	}
	r := &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{MinReadySeconds: -1}}
	check(t, ReplicationController(r), "spec.minReadySeconds: Invalid value: -1", "spec.replicas: Required value", "spec.selector: Required value", "spec.template: Required value")
	r.Status = corev1.ReplicationControllerStatus{Replicas: 1, FullyLabeledReplicas: 2, ReadyReplicas: 1, AvailableReplicas: 2, ObservedGeneration: -1}
	check(t, ReplicationControllerStatus(r),
		"status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas", "status.observedGeneration: Invalid value: -1")
}

func TestPodTemplates(t *testing.T) {
	template := &corev1.PodTemplate{Template: appTemplate()}
	defaults.PodTemplate(template)
	check(t, PodTemplate(template))
	template.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	template.Template.Spec.ActiveDeadlineSeconds = new(int64(5))
	check(t, PodTemplate(template))
	template.Template.Spec.Containers[0].Image = ""
	check(t, PodTemplate(template), "template.spec.containers[0].image: Required value")
}

func TestPodDisruptionBudgets(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{}
	check(t, PodDisruptionBudget(b))
	b.Spec = policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromString("101%")), MaxUnavailable: new(intstr.FromInt32(-1)),
		Selector:                   &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b c"}},
		UnhealthyPodEvictionPolicy: new(policyv1.UnhealthyPodEvictionPolicyType("Never")),
	}
	check(t, PodDisruptionBudget(b),
		"spec: Invalid value: {", `spec.minAvailable: Invalid value: "101%": must not be greater than 100%`,
		"spec.maxUnavailable: Invalid value: -1: must be greater than or equal to 0", `spec.selector.matchLabels: Invalid value: "b c"`,
		`spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget"`)
	b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: -1, CurrentHealthy: -2, DesiredHealthy: -3, ExpectedPods: -4, Conditions: []metav1.Condition{{Type: "a b"}}}
	list := PodDisruptionBudgetStatus(b)
	check(t, slicesOf(list, "status.disruptions"), "status.disruptionsAllowed: Invalid value: -1")
	if len(list) < 8 {
		t.Errorf("errors: %v", list)
	}
}

func TestScales(t *testing.T) {
	s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "default"}}
	check(t, Scale(s))
	s.Spec.Replicas, s.Labels = -1, map[string]string{"-": "b"} // of the labels nothing is kept
	check(t, Scale(s), "spec.replicas: Invalid value: -1: must be greater than or equal to 0")
}
