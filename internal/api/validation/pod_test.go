package validation

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/api/defaults"
)

// newPod returns a valid pod with defaults.
func newPod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "default",
			Containers:         []corev1.Container{{Name: "c", Image: "busybox"}},
			Volumes:            []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	defaults.Pod(pod)
	return pod
}

// parsePod reads the spec of a pod and fills in the defaults.
func parsePod(t *testing.T, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = "default"
	}
	defaults.Pod(pod)
	return pod
}

// check compares the errors with the wanted ones, in any order: each want is a prefix of one error.
func check(t *testing.T, list field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, err := range list {
		got = append(got, err.Error())
	}
	left := slices.Clone(got)
	for _, w := range want {
		i := slices.IndexFunc(left, func(g string) bool { return strings.HasPrefix(g, w) })
		if i < 0 {
			t.Errorf("no error %q in:\n%s", w, strings.Join(got, "\n"))
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, l := range left {
		t.Errorf("unexpected error: %s", l)
	}
}

type podCase struct {
	name   string
	change func(*corev1.Pod)
	want   []string
}

func runPodCases(t *testing.T, cases []podCase) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			pod := newPod()
			tc.change(pod)
			check(t, PodCreate(pod), tc.want...)
		})
	}
}

func first(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }

func TestContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	runPodCases(t, []podCase{
		{"nothing wrong", func(*corev1.Pod) {}, nil},
		{"none", func(p *corev1.Pod) { p.Spec.Containers = nil }, []string{"spec.containers: Required value"}},
		{"no name", func(p *corev1.Pod) { first(p).Name = "" }, []string{"spec.containers[0].name: Required value"}},
		{"name is no label", func(p *corev1.Pod) { first(p).Name = "A_b" }, []string{`spec.containers[0].name: Invalid value: "A_b": a lowercase RFC 1123 label must consist of`}},
		{"two of one name", func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, *first(p)) }, []string{`spec.containers[1].name: Duplicate value: "c"`}},
		{"no image", func(p *corev1.Pod) { first(p).Image = "" }, []string{"spec.containers[0].image: Required value"}},
		{"image with a space", func(p *corev1.Pod) { first(p).Image = "busybox " }, []string{`spec.containers[0].image: Invalid value: "busybox ": must not have leading or trailing whitespace`}},
		{"pull policy", func(p *corev1.Pod) { first(p).ImagePullPolicy = "Sometimes" }, []string{`spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`}},
		{"init container with a probe", func(p *corev1.Pod) {
			c := *first(p)
			c.Name, c.LivenessProbe = "init", &corev1.Probe{}
			p.Spec.InitContainers = []corev1.Container{c}
		}, []string{"spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"}},
		{"sidecar with a probe that needs two successes", func(p *corev1.Pod) {
			c := *first(p)
			c.Name, c.RestartPolicy = "side", &always
			c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, SuccessThreshold: 2}
			p.Spec.InitContainers = []corev1.Container{c}
		}, []string{"spec.initContainers[0].startupProbe.successThreshold: Invalid value: 2: must be 1"}},
		{"restart rules without a policy", func(p *corev1.Pod) {
			first(p).RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{3}}}}
		}, []string{"spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used"}},
		{"ephemeral containers come later", func(p *corev1.Pod) {
			c := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(*first(p))}
			c.Name = "debug"
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{c}
		}, []string{"spec.ephemeralContainers: Forbidden: cannot be set on create"}},
		{"ports", func(p *corev1.Pod) {
			first(p).Ports = []corev1.ContainerPort{
				{Name: "http", ContainerPort: 80, Protocol: "TCP", HostPort: 8080},
				{Name: "http", ContainerPort: 70000, Protocol: "TCP"},
				{Name: "Toolongaportname!", Protocol: "SPX"},
				{ContainerPort: 81, Protocol: "TCP", HostPort: 8080},
			}
		}, []string{
			`spec.containers[0].ports[1].name: Duplicate value: "http"`,
			"spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
			`spec.containers[0].ports[2].name: Invalid value: "Toolongaportname!": must be no more than 15 characters`,
			`spec.containers[0].ports[2].name: Invalid value: "Toolongaportname!": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)`,
			"spec.containers[0].ports[2].containerPort: Required value",
			`spec.containers[0].ports[2].protocol: Unsupported value: "SPX": supported values: "SCTP", "TCP", "UDP"`,
			`spec.containers[0].ports[3].hostPort: Duplicate value: "TCP//8080"`,
		}},
		{"restart policy", func(p *corev1.Pod) { p.Spec.RestartPolicy = "Maybe" }, []string{`spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "Never", "OnFailure"`}},
	})
}

func TestProbesAndHooks(t *testing.T) {
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}
	runPodCases(t, []podCase{
		{"no handler", func(p *corev1.Pod) { first(p).ReadinessProbe = &corev1.Probe{SuccessThreshold: 1} }, []string{"spec.containers[0].readinessProbe: Required value: must specify a handler type"}},
		{"two handlers", func(p *corev1.Pod) {
			h := exec
			h.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}
			first(p).LivenessProbe = &corev1.Probe{ProbeHandler: h, SuccessThreshold: 1}
		}, []string{"spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"}},
		{"liveness after two successes", func(p *corev1.Pod) {
			first(p).LivenessProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 2}
		}, []string{"spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"}},
		{"readiness after two successes is fine", func(p *corev1.Pod) {
			first(p).ReadinessProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 2}
		}, nil},
		{"a readiness probe kills nothing", func(p *corev1.Pod) {
			first(p).ReadinessProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 1, TerminationGracePeriodSeconds: new(int64(3))}
		}, []string{"spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 3: must not be set for readinessProbes"}},
		{"negative times", func(p *corev1.Pod) {
			first(p).ReadinessProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 1, PeriodSeconds: -1, TimeoutSeconds: -1}
		}, []string{
			"spec.containers[0].readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
			"spec.containers[0].readinessProbe.timeoutSeconds: Invalid value: -1: must be greater than or equal to 0",
		}},
		{"exec of nothing", func(p *corev1.Pod) {
			first(p).Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}
		}, []string{"spec.containers[0].lifecycle.preStop.exec.command: Required value"}},
		{"sleep past the grace period", func(p *corev1.Pod) {
			first(p).Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 31}}}
		}, []string{"spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)"}},
		{"http", func(p *corev1.Pod) {
			first(p).ReadinessProbe = &corev1.Probe{SuccessThreshold: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/", Scheme: "FTP", Port: intstr.FromString("no_port"), HTTPHeaders: []corev1.HTTPHeader{{Name: "a b"}},
			}}}
		}, []string{
			`spec.containers[0].readinessProbe.httpGet.port: Invalid value: "no_port": must contain only alpha-numeric`,
			`spec.containers[0].readinessProbe.httpGet.scheme: Unsupported value: "FTP": supported values: "HTTP", "HTTPS"`,
			`spec.containers[0].readinessProbe.httpGet.httpHeaders: Invalid value: "a b": a valid HTTP header must consist of`,
		}},
	})
}

func TestEnvironment(t *testing.T) {
	env := func(v ...corev1.EnvVar) func(*corev1.Pod) {
		return func(p *corev1.Pod) { first(p).Env = v }
	}
	ref := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	runPodCases(t, []podCase{
		{"no name", env(corev1.EnvVar{Value: "x"}), []string{"spec.containers[0].env[0].name: Required value"}},
		{"name with =", env(corev1.EnvVar{Name: "a=b"}), []string{`spec.containers[0].env[0].name: Invalid value: "a=b"`}},
		{"allowed fields", env(
			corev1.EnvVar{Name: "A", ValueFrom: ref("metadata.labels['app.kubernetes.io/name']")},
			corev1.EnvVar{Name: "B", ValueFrom: ref("status.podIPs")},
			corev1.EnvVar{Name: "C", ValueFrom: ref("metadata.annotations['x']")},
		), nil},
		{"unknown field", env(corev1.EnvVar{Name: "A", ValueFrom: ref("spec.color")}), []string{`spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.color": error converting fieldPath: field label not supported: spec.color`}},
		{"field of volumes only", env(corev1.EnvVar{Name: "A", ValueFrom: ref("metadata.labels")}), []string{`spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"`}},
		{"value and source", env(corev1.EnvVar{Name: "A", Value: "x", ValueFrom: ref("metadata.name")}), []string{`spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `}},
		{"no source", env(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{}}), []string{"spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`"}},
		{"key", env(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}), []string{"spec.containers[0].env[0].valueFrom.secretKeyRef.key: Required value"}},
		{"resource", env(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.gpu"}}}), []string{`spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu"`}},
		{"divisor", env(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("2")}}}), []string{`spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": only divisor's values 1m and 1 are supported with the cpu resource`}},
		{"envFrom", func(p *corev1.Pod) { first(p).EnvFrom = []corev1.EnvFromSource{{}} }, []string{"spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"}},
	})
}

func TestVolumes(t *testing.T) {
	add := func(s corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: s})
		}
	}
	mount := func(m ...corev1.VolumeMount) func(*corev1.Pod) {
		return func(p *corev1.Pod) { first(p).VolumeMounts = m }
	}
	bidirectional := corev1.MountPropagationBidirectional
	runPodCases(t, []podCase{
		{"no source", add(corev1.VolumeSource{}), []string{"spec.volumes[1]: Required value: must specify a volume type"}},
		{"two sources", add(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}, EmptyDir: &corev1.EmptyDirVolumeSource{}}), []string{"spec.volumes[1].emptyDir: Forbidden: may not specify more than 1 volume type"}},
		{"two of one name", func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[0]) }, []string{`spec.volumes[1].name: Duplicate value: "v"`}},
		{"hostPath", add(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a/../b", Type: new(corev1.HostPathType("Pipe"))}}), []string{
			`spec.volumes[1].hostPath.path: Invalid value: "/a/../b": must not contain '..'`,
			`spec.volumes[1].hostPath.type: Unsupported value: "Pipe"`,
		}},
		{"secret", add(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{DefaultMode: new(int32(0o1000)), Items: []corev1.KeyToPath{{Key: "k", Path: "/abs"}}}}), []string{
			"spec.volumes[1].secret.secretName: Required value",
			"spec.volumes[1].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
			`spec.volumes[1].secret.items[0].path: Invalid value: "/abs": must be a relative path`,
		}},
		{"claim", add(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}), []string{"spec.volumes[1].persistentVolumeClaim.claimName: Required value"}},
		{"projected paths collide", add(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o644)), Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Items: []corev1.KeyToPath{{Key: "k", Path: "f"}}}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}, Items: []corev1.KeyToPath{{Key: "k", Path: "f"}}}},
		}}}), []string{`spec.volumes[1].projected: Invalid value: "m": conflicting duplicate paths`}},
		{"token of ten seconds", add(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o644)), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t", ExpirationSeconds: new(int64(10))}},
		}}}), []string{"spec.volumes[1].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes"}},
		{"mount of nothing", mount(corev1.VolumeMount{Name: "x", MountPath: "/m"}), []string{`spec.containers[0].volumeMounts[0].name: Not found: "x"`}},
		{"two mounts in one place", mount(corev1.VolumeMount{Name: "v", MountPath: "/m"}, corev1.VolumeMount{Name: "v", MountPath: "/m"}), []string{`spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/m": must be unique`}},
		{"mount without a path", mount(corev1.VolumeMount{Name: "v"}), []string{"spec.containers[0].volumeMounts[0].mountPath: Required value"}},
		{"subPath out of the volume", mount(corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "a/../../b"}), []string{`spec.containers[0].volumeMounts.subPath: Invalid value: "a/../../b": must not contain '..'`}},
		{"propagation without privilege", mount(corev1.VolumeMount{Name: "v", MountPath: "/m", MountPropagation: &bidirectional}), []string{"spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"}},
		{"device on a directory", func(p *corev1.Pod) {
			first(p).VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
		}, []string{`spec.containers[0].volumeDevices[0].name: Invalid value: "v": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode`}},
	})
}

func TestResources(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	set := func(requests, limits corev1.ResourceList) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			first(p).Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		}
	}
	runPodCases(t, []podCase{
		{"fine", set(list("cpu", "100m", "example.com/gpu", "1"), list("cpu", "1", "example.com/gpu", "1")), nil},
		{"request above the limit", set(list("cpu", "2"), list("cpu", "1")), []string{`spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`}},
		{"negative", set(list("memory", "-1"), nil), []string{`spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0`}},
		{"unknown", set(list("ram", "1"), nil), []string{`spec.containers[0].resources.requests[ram]: Invalid value: "ram": must be a standard resource type or fully qualified`, `spec.containers[0].resources.requests[ram]: Invalid value: "ram": must be a standard resource for containers`}},
		{"a device that is shared", set(list("example.com/gpu", "1"), list("example.com/gpu", "2")), []string{`spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2`}},
		{"half a device", set(list("example.com/gpu", "500m"), list("example.com/gpu", "500m")), []string{
			`spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "500m": must be an integer`,
			`spec.containers[0].resources.requests[example.com/gpu]: Invalid value: "500m": must be an integer`,
		}},
		{"huge pages alone", set(nil, list("hugepages-2Mi", "4Mi")), []string{"spec.containers[0].resources: Forbidden: HugePages require cpu or memory"}},
		{"huge pages in parts", set(list("cpu", "1", "hugepages-2Mi", "3Mi"), list("cpu", "1", "hugepages-2Mi", "3Mi")), []string{
			`spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi`,
			`spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi`,
		}},
		{"a claim that the pod has not", func(p *corev1.Pod) { first(p).Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}} }, []string{`spec.containers[0].resources.claims[0]: Not found: "gpu": must be one of the names in pod.spec.resourceClaims which is empty`}},
		{"a claim of two sources", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("a"), ResourceClaimTemplateName: new("b")}}
		}, []string{"spec.resourceClaims[0]: Invalid value:"}},
	})
}

func TestScheduling(t *testing.T) {
	tolerate := func(tol corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{tol} }
	}
	runPodCases(t, []podCase{
		{"toleration of everything", tolerate(corev1.Toleration{Operator: "Exists"}), nil},
		{"toleration of no key", tolerate(corev1.Toleration{Operator: "Equal"}), []string{"spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty"}},
		{"seconds without NoExecute", tolerate(corev1.Toleration{Key: "k", Operator: "Exists", Effect: "NoSchedule", TolerationSeconds: new(int64(1))}), []string{`spec.tolerations[0].effect: Invalid value: "NoSchedule": effect must be 'NoExecute' when `}},
		{"effect", tolerate(corev1.Toleration{Key: "k", Operator: "Exists", Effect: "Maybe"}), []string{`spec.tolerations[0].effect: Unsupported value: "Maybe"`}},
		{"node selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a/b/c": "x"} }, []string{`spec.nodeSelector: Invalid value: "a/b/c"`}},
		{"node affinity without terms", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		}, []string{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term"}},
		{"pod affinity without a topology", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 101}}}}
		}, []string{
			"spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be in the range 1-100",
			"spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Required value: can not be empty",
			`spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Invalid value: ""`,
			`spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Invalid value: ""`,
		}},
		{"spread", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: "Cry", TopologyKey: "zone"}}
		}, []string{
			"spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
			`spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Cry": supported values: "DoNotSchedule", "ScheduleAnyway"`,
		}},
		{"gates", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "a"}}
			p.Spec.NodeName = "n"
		}, []string{
			`spec.schedulingGates[1]: Duplicate value: "a"`,
			"spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
		}},
		{"deadline", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(0)) }, []string{"spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"}},
	})
}

func TestSecurityAndHost(t *testing.T) {
	runPodCases(t, []podCase{
		{"host network needs equal ports", func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
			first(p).Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 81, Protocol: "TCP"}}
		}, []string{"spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true"}},
		{"user namespace with the host's", func(p *corev1.Pod) { p.Spec.HostUsers, p.Spec.HostPID = new(false), true }, []string{"spec.HostPID: Forbidden: when `hostUsers` is false"}},
		{"process namespace twice", func(p *corev1.Pod) { p.Spec.HostPID, p.Spec.ShareProcessNamespace = true, new(true) }, []string{"spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"}},
		{"user", func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsUser = new(int64(-1)) }, []string{"spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"}},
		{"privileged and not", func(p *corev1.Pod) {
			first(p).SecurityContext = &corev1.SecurityContext{Privileged: new(true), AllowPrivilegeEscalation: new(false)}
		}, []string{"spec.containers[0].securityContext: Invalid value:"}},
		{"seccomp without a file", func(p *corev1.Pod) {
			p.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}
		}, []string{"spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"}},
		{"app armor", func(p *corev1.Pod) {
			p.Spec.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: "Own"}
		}, []string{`spec.securityContext.appArmorProfile.type: Unsupported value: "Own"`}},
		{"sysctls", func(p *corev1.Pod) {
			p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.sem"}, {Name: "kernel.sem"}, {Name: "A b"}, {}}
		}, []string{
			`spec.securityContext.sysctls[1].name: Duplicate value: "kernel.sem"`,
			`spec.securityContext.sysctls[2].name: Invalid value: "A b": must have at most 253 characters and match regex`,
			"spec.securityContext.sysctls[3].name: Required value",
		}},
		{"dns None alone", func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSNone }, []string{"spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"}},
		{"too many nameservers", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "x"}}
		}, []string{
			"spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"1.1.1.2\",\"1.1.1.3\",\"x\"]: must not have more than 3 nameservers",
			`spec.dnsConfig.nameservers[3]: Invalid value: "x": must be a valid IP address`,
		}},
		{"aliases", func(p *corev1.Pod) {
			p.Spec.HostAliases = []corev1.HostAlias{{IP: "nowhere", Hostnames: []string{"a_b"}}}
		}, []string{`spec.hostAliases[0].ip: Invalid value: "nowhere"`, `spec.hostAliases[0].hostnames[0]: Invalid value: "a_b"`}},
		{"names", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.NodeName = "a.b", "N" }, []string{`spec.hostname: Invalid value: "a.b"`, `spec.nodeName: Invalid value: "N"`}},
		{"os", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: "plan9"} }, []string{`spec.os: Unsupported value: "plan9": supported values: "linux", "windows"`}},
		{"mirror pod without a node", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, []string{`metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "x": must set spec.nodeName if mirror pod annotation is set`}},
	})
}

func TestEveryExampleOfTheDocumentationPasses(t *testing.T) {
	pod := parsePod(t, `
initContainers:
- {name: setup, image: busybox, command: [sh, -c, "true"]}
- name: side
  image: busybox
  restartPolicy: Always
  startupProbe: {exec: {command: ["true"]}}
containers:
- name: web
  image: nginx:1.27
  ports: [{name: http, containerPort: 80}]
  env:
  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  envFrom: [{secretRef: {name: s, optional: true}}]
  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}
  livenessProbe: {httpGet: {path: /, port: http}}
  lifecycle: {preStop: {sleep: {seconds: 5}}}
  securityContext: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}, readOnlyRootFilesystem: true}
  volumeMounts:
  - {name: cache, mountPath: /cache, subPathExpr: $(NODE)}
  - {name: info, mountPath: /info, readOnly: true}
volumes:
- {name: cache, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
- name: info
  projected:
    sources:
    - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
    - configMap: {name: m}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: x}}, matchLabelKeys: [pod-template-hash]}
topologySpreadConstraints:
- {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: x}}}
tolerations: [{key: k, operator: Equal, value: v, effect: NoExecute, tolerationSeconds: 3}]
dnsPolicy: None
dnsConfig: {nameservers: [10.0.0.10], searches: [a.b, "."], options: [{name: ndots, value: "2"}]}
`)
	check(t, PodCreate(pod))
}
