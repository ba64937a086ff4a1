package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What `make diff-apiserver` found: each of these was accepted here, and refused by upstream.

func TestWindowsOptions(t *testing.T) {
	const sc = "spec.containers[0].securityContext.windowsOptions."
	with := func(o corev1.WindowsSecurityContextOptions) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{WindowsOptions: &o}
		}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"fine":         {with(corev1.WindowsSecurityContextOptions{GMSACredentialSpecName: new("a.b"), RunAsUserName: new(`NT AUTHORITY\Local Service`)}), nil},
		"name":         {with(corev1.WindowsSecurityContextOptions{GMSACredentialSpecName: new("A")}), []string{sc + `gmsaCredentialSpecName: Invalid value: "A"`}},
		"spec":         {with(corev1.WindowsSecurityContextOptions{GMSACredentialSpec: new("")}), []string{sc + "gmsaCredentialSpec: Invalid value"}},
		"long spec":    {with(corev1.WindowsSecurityContextOptions{GMSACredentialSpec: new(strings.Repeat("a", 65<<10))}), []string{sc + "gmsaCredentialSpec: Invalid value"}},
		"no user":      {with(corev1.WindowsSecurityContextOptions{RunAsUserName: new("")}), []string{sc + "runAsUserName: Invalid value"}},
		"bad user":     {with(corev1.WindowsSecurityContextOptions{RunAsUserName: new(`a\b|c`)}), []string{sc + "runAsUserName: Invalid value"}},
		"two domains":  {with(corev1.WindowsSecurityContextOptions{RunAsUserName: new(`a\b\c`)}), []string{sc + "runAsUserName: Invalid value"}},
		"bad domain":   {with(corev1.WindowsSecurityContextOptions{RunAsUserName: new(`a..b\c`)}), nil}, // NetBIOS
		"odd domain":   {with(corev1.WindowsSecurityContextOptions{RunAsUserName: new(`.a\c`)}), []string{sc + "runAsUserName: Invalid value"}},
		"host process": {with(corev1.WindowsSecurityContextOptions{HostProcess: new(true)}), []string{"spec.hostNetwork: Invalid value: false: hostNetwork must be true"}},
		"one of two": {func(p *corev1.Pod) {
			with(corev1.WindowsSecurityContextOptions{HostProcess: new(true)})(p)
			p.Spec.HostNetwork = true
			other := *p.Spec.Containers[0].DeepCopy()
			other.Name, other.SecurityContext = "b", nil
			p.Spec.Containers = append(p.Spec.Containers, other)
		}, []string{`spec: Invalid value: "": If pod contains any hostProcess containers`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod()
			tc.change(p)
			check(t, PodCreate(p), tc.want...)
		})
	}
}

func TestDeclaredFeatures(t *testing.T) {
	n := &corev1.Node{}
	n.Status.DeclaredFeatures = []string{"A", "B/c"}
	check(t, Node(n))
	n.Status.DeclaredFeatures = []string{"B", "A", "A", "lower"}
	check(t, Node(n), `status.declaredFeatures[1]: Invalid value: "A": list must be sorted`, `status.declaredFeatures[2]: Duplicate value: "A"`,
		`status.declaredFeatures[3]: Invalid value: "lower": invalid feature name`)
}

func TestServiceStatus(t *testing.T) {
	s, old := &corev1.Service{}, &corev1.Service{}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
	check(t, ServiceStatusUpdate(s, old), "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'")
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	check(t, ServiceStatusUpdate(s, old))
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "x"}, {Hostname: "10.0.0.1", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
	check(t, ServiceStatusUpdate(s, old), `status.loadBalancer.ingress[0].ip: Invalid value: "x"`, "status.loadBalancer.ingress[0].ipMode: Required value",
		"status.loadBalancer.ingress[1].ipMode: Forbidden", `status.loadBalancer.ingress[1].hostname: Invalid value: "10.0.0.1": must be a DNS name`)
}

func TestHealthOfDevicesInAStatus(t *testing.T) {
	old := newPod()
	p := old.DeepCopy()
	status := corev1.ContainerStatus{Name: p.Spec.Containers[0].Name, AllocatedResourcesStatus: []corev1.ResourceStatus{
		{Name: "example.com/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "a", Health: "Fine"}, {ResourceID: "a", Health: corev1.ResourceHealthStatusHealthy, Message: new("")}}},
		{Name: "claim:c/r"},
	}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{status}
	const at = "status.containerStatuses[0].allocatedResourcesStatus"
	check(t, PodStatus(p, old), at+"[0].name: Invalid value", at+`[0].resources[0].health: Unsupported value: "Fine"`, at+"[0].resources[1].message: Required value",
		at+`[0].resources[1].resourceID: Duplicate value: "a"`, at+"[1].name: Invalid value",
		"status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden")
	c := &p.Spec.Containers[0]
	c.Resources.Requests = corev1.ResourceList{"example.com/gpu": {}}
	c.Resources.Claims = []corev1.ResourceClaim{{Name: "c", Request: "r"}}
	p.Status.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources = nil
	p.Status.EphemeralContainerStatuses = nil
	check(t, PodStatus(p, old))
}

func TestFinalizersHaveADomain(t *testing.T) {
	check(t, Finalizers([]string{"kubernetes", "orphan", "foregroundDeletion", "example.com/x"}))
	check(t, Finalizers([]string{"mine"}), `metadata.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`)
}

func TestRatioOfALimitRange(t *testing.T) {
	item := corev1.LimitRangeItem{Type: corev1.LimitTypeContainer}
	cpu := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
	}
	item.Min, item.Max, item.MaxLimitRequestRatio = cpu("500m"), cpu("2"), cpu("4")
	check(t, LimitRange(&corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}))
	item.MaxLimitRequestRatio = cpu("5")
	check(t, LimitRange(&corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}),
		`spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "5": ratio 5 is greater than max/min = 4.000000`)
}

func TestSecretsOfCSIVolumes(t *testing.T) {
	p := &problems{}
	p.secret(nil, &corev1.SecretReference{Name: "a.b", Namespace: "c"})
	p.secret(nil, nil)
	check(t, p.list)
	p.secret(nil, &corev1.SecretReference{Name: "A", Namespace: "c.d"})
	check(t, p.list, `name: Invalid value: "A"`, `namespace: Invalid value: "c.d"`)
}
