package warnings

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// TestOfPods: the words are those of Kubernetes 1.37.
func TestOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  string
		want []string
	}{
		"nothing": {`spec: {containers: [{name: a, image: x, ports: [{name: p, containerPort: 1}]}]}`, nil},
		"selectors that match nothing": {`
spec:
  topologySpreadConstraints: [{topologyKey: failure-domain.beta.kubernetes.io/zone}]
  affinity:
    podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z}]}
    podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{podAffinityTerm: {topologyKey: z}}]}`, []string{
			`spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in matching no pod`,
			`spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod`,
			`spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod`,
			`spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
		}},
		"nodes": {`
spec:
  nodeSelector: {beta.kubernetes.io/os: linux}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: beta.kubernetes.io/arch, operator: Exists}]}]}
      preferredDuringSchedulingIgnoredDuringExecution: [{preference: {matchExpressions: [{key: k, operator: In, values: ["a b"]}]}}]`, []string{
			`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[0]: a b is invalid, ` +
				`a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an ` +
				`alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`,
			`spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: ` +
				`beta.kubernetes.io/arch is deprecated since v1.14; use "kubernetes.io/arch" instead`,
			`spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`,
		}},
		"annotations": {`
metadata: {annotations: {scheduler.alpha.kubernetes.io/critical-pod: "", seccomp.security.alpha.kubernetes.io/pod: x, container.seccomp.security.alpha.kubernetes.io/a: x}}
spec: {containers: [{name: a}]}`, []string{
			`metadata.annotations[container.seccomp.security.alpha.kubernetes.io/a]: non-functional in v1.27+; use the "seccompProfile" field instead`,
			`metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead`,
			`metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the "seccompProfile" field instead`,
		}},
		"volumes": {`
spec:
  volumes:
  - {name: old, rbd: {}}
  - {name: claim, ephemeral: {volumeClaimTemplate: {spec: {resources: {requests: {storage: 1500m}}}}}}
  - {name: keys, configMap: {name: c, items: [{key: a, path: p}, {key: b, path: p/q}]}}
  - {name: all, projected: {sources: [{}, {serviceAccountToken: {path: t}}, {downwardAPI: {items: [{path: t/}]}}]}}`, []string{
			`spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+`,
			`spec.volumes[1].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an integer`,
			`volume "all" (Projected) has no sources provided`,
			`volume "all" (Projected): overlapping paths: "t" (DownwardAPI) with "t" (ServiceAccountToken)`,
			`volume "keys" (ConfigMap "c"): overlapping paths: "p/q" with "p"`,
		}},
		"ports": {`
spec:
  containers:
  - {name: a, ports: [{name: p, containerPort: 1}, {containerPort: 1}, {containerPort: 2, hostPort: 5}, {containerPort: 3, hostIP: 192.0.2.1}]}
  - {name: b, ports: [{name: p, containerPort: 9}, {containerPort: 2}, {containerPort: 2, hostPort: 5, hostIP: 192.0.2.1}]}`, []string{
			`spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]`,
			`spec.containers[0].ports[3]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:3 Protocol: HostIP:192.0.2.1}`,
			`spec.containers[1].ports[0]: duplicate port name "p" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]`,
			`spec.containers[1].ports[1]: overlapping port definition with spec.containers[0].ports[2]`,
			`spec.containers[1].ports[2]: dangerously ambiguous port definition with spec.containers[0].ports[2]`,
			`spec.containers[1].ports[2]: overlapping port definition with spec.containers[1].ports[1]`,
		}},
		"the rest": {`
spec:
  terminationGracePeriodSeconds: -1
  hostAliases: [{ip: 192.0.2.1}, {ip: 192.0.2.1}]
  imagePullSecrets: [{name: a}, {name: a}, {}]
  dnsConfig: {nameservers: [192.000.2.1]}
  overhead: {memory: 100m}
  initContainers: [{name: i, env: [{name: A, value: x}, {name: A, value: y}], resources: {limits: {memory: 10m}}}]`, []string{
			`spec.dnsConfig.nameservers[0]: non-standard IP address "192.000.2.1" is invalid: use "192.0.2.1"`,
			`spec.hostAliases[1].ip: duplicate ip "192.0.2.1"`,
			`spec.imagePullSecrets[1].name: duplicate name "a"`,
			`spec.imagePullSecrets[2].name: invalid empty name ""`,
			`spec.initContainers[0].env[1]: hides previous definition of "A", which may be dropped when using apply`,
			`spec.initContainers[0].resources.limits[memory]: fractional byte value "10m" is invalid, must be an integer`,
			`spec.overhead[memory]: fractional byte value "100m" is invalid, must be an integer`,
			`spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var p corev1.Pod
			if err := yaml.UnmarshalStrict([]byte(tc.pod), &p); err != nil {
				t.Fatal(err)
			}
			same(t, Pod(t.Context(), &p), tc.want...)
		})
	}
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestOfTemplates: the annotation of an AppArmor profile is not taken over here, as it is in pods.
func TestOfTemplates(t *testing.T) {
	tmpl := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"container.apparmor.security.beta.kubernetes.io/a": "runtime/default"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}},
	}
	at := field.NewPath("spec", "template")
	same(t, Template(at, tmpl),
		`spec.template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: deprecated since v1.30; use the "appArmorProfile" field instead`)
	tmpl.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}
	same(t, Template(at, tmpl))
}

func TestOfServices(t *testing.T) {
	for name, tc := range map[string]struct {
		spec corev1.ServiceSpec
		want []string
	}{
		"nothing": {corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, SessionAffinity: corev1.ServiceAffinityNone}, nil},
		"headless": {corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, SessionAffinity: corev1.ServiceAffinityClientIP,
			ExternalIPs: []string{"192.0.2.1"}}, []string{"spec.SessionAffinity is ignored for headless services", "spec.externalIPs is ignored for headless services"}},
		"external": {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "a", ExternalIPs: []string{"192.0.2.1"}},
			[]string{`spec.externalIPs is ignored when spec.type is "ExternalName"`}},
		"not external": {corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ExternalName: "a", ExternalIPs: []string{"192.0.2.1"}}, []string{
			"spec.externalIPs is deprecated and may no longer be implemented in some clusters", `spec.externalName is ignored when spec.type is not "ExternalName"`}},
		"near": {corev1.ServiceSpec{TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferClose)},
			[]string{`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`}},
	} {
		t.Run(name, func(t *testing.T) {
			same(t, Service(t.Context(), &corev1.Service{Spec: tc.spec}), tc.want...)
		})
	}
}

func TestOfSecrets(t *testing.T) {
	same(t, Secret(t.Context(), &corev1.Secret{Type: corev1.SecretTypeOpaque}))
	same(t, Secret(t.Context(), &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": []byte("x")}}),
		"tls: failed to find any PEM data in certificate input")
}
