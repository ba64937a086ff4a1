package validation

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/defaults"
)

func TestConfigMapsAndSecrets(t *testing.T) {
	check(t, ConfigMap(&corev1.ConfigMap{Data: map[string]string{"a/b": "", "k": ""}, BinaryData: map[string][]byte{"k": nil}}),
		`data[a/b]: Invalid value: "a/b": a valid config key must consist of`,
		`data[k]: Invalid value: "k": duplicate of key present in binaryData`)
	check(t, ConfigMap(&corev1.ConfigMap{Data: map[string]string{"k": strings.Repeat("x", 1<<20+1)}}),
		"[]: Too long: may not be more than 1048576 bytes")

	old := &corev1.ConfigMap{Immutable: new(true), Data: map[string]string{"k": "v"}}
	changed := &corev1.ConfigMap{Data: map[string]string{"k": "w"}}
	check(t, ConfigMapUpdate(changed, old),
		"immutable: Forbidden: field is immutable when `immutable` is set",
		"data: Forbidden: field is immutable when `immutable` is set")

	secret := &corev1.Secret{Type: corev1.SecretTypeTLS}
	check(t, Secret(secret), `data[tls.crt]: Required value`, "data[tls.key]: Required value")
	check(t, SecretUpdate(&corev1.Secret{Type: corev1.SecretTypeOpaque}, &corev1.Secret{Type: corev1.SecretTypeBasicAuth}),
		`type: Invalid value: "Opaque": field is immutable`)
	check(t, Secret(&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte("{")}}),
		`data[.dockerconfigjson]: Invalid value: "<secret contents redacted>"`)
}

func TestServices(t *testing.T) {
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		defaults.Service(s)
		change(s)
		return s
	}
	cases := []struct {
		name   string
		change func(*corev1.Service)
		want   []string
	}{
		{"fine", func(*corev1.Service) {}, nil},
		{"no ports", func(s *corev1.Service) { s.Spec.Ports = nil }, []string{"spec.ports: Required value"}},
		{"ports without names", func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, s.Spec.Ports[0]) },
			[]string{"spec.ports[0].name: Required value", "spec.ports[1].name: Required value", `spec.ports[1]: Duplicate value: {"protocol":"TCP","port":80,"targetPort":0}`}},
		{"port", func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[0].TargetPort = 0, intstr.FromString("A_") },
			[]string{"spec.ports[0].port: Invalid value: 0", "spec.ports[0].targetPort: Invalid value: \"A_\"", "spec.ports[0].targetPort: Invalid value: \"A_\""}},
		{"type", func(s *corev1.Service) { s.Spec.Type = "Magic" }, []string{`spec.type: Unsupported value: "Magic": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`}},
		{"external name", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, []string{"spec.externalName: Required value"}},
		{"node port of a cluster IP", func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30000 }, []string{"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"}},
		{"cluster IP", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "x", []string{"x"} }, []string{`spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address`}},
		{"selector", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b c"} }, []string{`spec.selector: Invalid value: "b c"`}},
		{"affinity", func(s *corev1.Service) { s.Spec.SessionAffinity = "Love" }, []string{`spec.sessionAffinity: Unsupported value: "Love": supported values: "ClientIP", "None"`}},
		{"loopback", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"127.0.0.1"} }, []string{
			`spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`, "spec.externalTrafficPolicy: Required value"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) { check(t, Service(service(tc.change)), tc.want...) })
	}
	old := service(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.0.0.1", []string{"10.0.0.1"} })
	moved := service(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.0.0.2", []string{"10.0.0.2"} })
	check(t, ServiceUpdate(moved, old), `spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set`)
}

func TestNodesAndNamespaces(t *testing.T) {
	n := &corev1.Node{Spec: corev1.NodeSpec{
		Taints:   []corev1.Taint{{Key: "a", Effect: "NoSchedule"}, {Key: "a", Effect: "NoSchedule"}, {Key: "b", Effect: "Never"}},
		PodCIDRs: []string{"10.0.0.0/24", "10.1.0.0/24"},
	}}
	check(t, Node(n),
		`metadata.taints[1]: Duplicate value: {"key":"a","effect":"NoSchedule"}`,
		`metadata.taints[2].effect: Unsupported value: "Never"`,
		`spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.1.0.0/24"]: may specify no more than one CIDR for each IP family`)
	old := &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, ProviderID: "a"}}
	check(t, NodeUpdate(&corev1.Node{}, old),
		`spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`,
		"spec.providerID: Invalid value: null: field cannot be cleared once set")
	check(t, Namespace(&corev1.Namespace{Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"mine"}}}),
		`spec.finalizers: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`)
}

func TestPolicies(t *testing.T) {
	q := func(s string) resource.Quantity { return resource.MustParse(s) }
	check(t, LimitRange(&corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer,
		Min:  corev1.ResourceList{"cpu": q("2")}, Max: corev1.ResourceList{"cpu": q("1")},
	}}}}), `spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1`)
	check(t, ResourceQuota(&corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": q("-1"), "sky": q("1")}}}),
		`spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0`,
		`spec.hard[sky]: Invalid value: "sky": must be a standard resource type or fully qualified`,
		`spec.hard[sky]: Invalid value: "sky": must be a standard resource for quota`)
	check(t, PriorityClass(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "system-mine"}, Value: 5}),
		`metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class`)
	check(t, PriorityClass(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Value: 1000000001}),
		"value: Forbidden: maximum allowed value of a user defined priority is 1000000000")
	check(t, PriorityClassUpdate(&schedulingv1.PriorityClass{Value: 1}, &schedulingv1.PriorityClass{Value: 2}), "value: Forbidden: may not be changed in an update.")
	check(t, RuntimeClass(&nodev1.RuntimeClass{Handler: "A b"}), `handler: Invalid value: "A b"`)
	check(t, RuntimeClassUpdate(&nodev1.RuntimeClass{Handler: "a"}, &nodev1.RuntimeClass{Handler: "b"}), `handler: Invalid value: "a": field is immutable`)
}

func TestRoles(t *testing.T) {
	check(t, Role(&rbacv1.Role{Rules: []rbacv1.PolicyRule{{}, {Verbs: []string{"get"}, NonResourceURLs: []string{"/x"}}}}),
		"rules[0].verbs: Required value: verbs must contain at least one value",
		"rules[0].apiGroups: Required value: resource rules must supply at least one api group",
		"rules[0].resources: Required value: resource rules must supply at least one resource",
		`rules[1].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs`)
	b := &rbacv1.RoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Pod", Name: "r"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount"}, {Kind: "Robot", Name: "x"}},
	}
	check(t, RoleBinding(b),
		`roleRef.kind: Unsupported value: "Pod": supported values: "ClusterRole", "Role"`,
		"subjects[0].name: Required value",
		`subjects[1].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"`)
	a, z := rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "a"}, rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "z"}
	check(t, RoleBindingUpdate(&rbacv1.RoleBinding{RoleRef: z}, &rbacv1.RoleBinding{RoleRef: a}), `roleRef: Invalid value: {"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"z"}: cannot change roleRef`)
}

func TestEndpointSlices(t *testing.T) {
	s := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"::1"}}, {}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP)}, {Name: new(""), Protocol: new(corev1.ProtocolTCP)}},
	}
	list := EndpointSlice(s)
	check(t, slicesOf(list, "endpoints[1]"), "endpoints[1].addresses: Required value: must contain at least 1 address")
	check(t, slicesOf(list, "ports[1]"), `ports[1].name: Duplicate value: ""`)
	if len(slicesOf(list, "endpoints[0]")) == 0 {
		t.Error("an IPv6 address is in a slice of IPv4")
	}
	check(t, EndpointSliceUpdate(&discoveryv1.EndpointSlice{AddressType: "IPv4"}, &discoveryv1.EndpointSlice{AddressType: "IPv6"}), `addressType: Invalid value: "IPv4": field is immutable`)
}

func slicesOf(list field.ErrorList, prefix string) field.ErrorList {
	return slices.DeleteFunc(slices.Clone(list), func(e *field.Error) bool { return !strings.HasPrefix(e.Field, prefix) })
}

func TestEvents(t *testing.T) {
	old := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default"},
	}
	check(t, Event(old, false))
	lost := old.DeepCopy()
	lost.InvolvedObject.Namespace = "other"
	check(t, Event(lost, false), `involvedObject.namespace: Invalid value: "other": does not match event.namespace`)
	fresh := old.DeepCopy()
	fresh.Name, fresh.ReportingController = "a", "/"
	fresh.EventTime = metav1.NewMicroTime(time.Unix(1, 0))
	check(t, StrictEvent(fresh),
		`reportingController: Invalid value: "/": prefix part must be non-empty`,
		`reportingController: Invalid value: "/": name part must be non-empty`, `reportingController: Invalid value: "/": name part must consist`,
		"reportingInstance: Required value", "action: Required value", "reason: Required value",
		`type: Invalid value: "": has invalid value: `)
}

func TestClaims(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{"Never"}}}
	check(t, PersistentVolumeClaim(claim),
		`spec.accessModes: Unsupported value: "Never": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"`,
		"spec.resources[storage]: Required value")
	volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Capacity:    corev1.ResourceList{"storage": resource.MustParse("1Gi")},
	}}
	check(t, PersistentVolume(volume), "spec: Required value: must specify a volume type")
}

func FuzzSplitSubscript(f *testing.F) {
	for _, s := range []string{"metadata.labels['a']", "metadata.labels['']", "['a']", "a['b", "a'] ['"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		base, key, ok := splitSubscript(s)
		if ok && base+"['"+key+"']" != s {
			t.Errorf("%q is split into %q and %q", s, base, key)
		}
		if !ok && base != s {
			t.Errorf("%q has no subscript, yet %q is left", s, base)
		}
	})
}
