package validation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const mayNot = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

func TestWhatAnUpdateMayChange(t *testing.T) {
	cases := []struct {
		name   string
		before func(*corev1.Pod)
		change func(*corev1.Pod)
		want   []string
	}{
		{"nothing", nil, func(*corev1.Pod) {}, nil},
		{"labels", nil, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, nil},
		{"image", nil, func(p *corev1.Pod) { first(p).Image = "nginx" }, nil},
		{"no image", nil, func(p *corev1.Pod) { first(p).Image = "" }, []string{"spec.containers[0].image: Required value"}},
		{"command", nil, func(p *corev1.Pod) { first(p).Command = []string{"x"} }, []string{mayNot}},
		{"node", nil, func(p *corev1.Pod) { p.Spec.NodeName = "n" }, []string{mayNot}},
		{"one more container", nil, func(p *corev1.Pod) {
			c := *first(p)
			c.Name = "d"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}, []string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{"a deadline", nil, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }, nil},
		{"a later deadline", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(6)) },
			[]string{"spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"}},
		{"one more toleration", nil, func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "k", Operator: "Exists"})
		}, nil},
		{"a toleration less", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: "Exists"}} }, func(p *corev1.Pod) { p.Spec.Tolerations = nil },
			[]string{"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"}},
		{"a gate less", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "b"}} }, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = p.Spec.SchedulingGates[:1]
		}, nil},
		{"a gate more", nil, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}} },
			[]string{"spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a'"}},
		{"a selector while gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}} }, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		}, nil},
		{"another selector while gated", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}}
			p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		}, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} },
			[]string{"spec.nodeSelector: Invalid value: {\"disk\":\"hdd\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"}},
		{"mirror annotation", nil, func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}, []string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation", "metadata.annotations[kubernetes.io/config.mirror]: Invalid value"}},
		{"a grace period that was negative", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(-3)) }, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(1)) }, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			old := newPod()
			if tc.before != nil {
				tc.before(old)
			}
			pod := old.DeepCopy()
			tc.change(pod)
			check(t, PodUpdate(pod, old), tc.want...)
		})
	}
}

func debugContainer(name string) corev1.EphemeralContainer {
	return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: name, Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}}
}

func TestEphemeralContainersAreOnlyAdded(t *testing.T) {
	old := newPod()
	old.Spec.EphemeralContainers = []corev1.EphemeralContainer{debugContainer("d")}
	pod := old.DeepCopy()
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, debugContainer("e"))
	pod.Spec.EphemeralContainers[1].TargetContainerName = "c"
	check(t, PodEphemeralContainers(pod, old))

	pod.Spec.EphemeralContainers[0].Image = "other"
	check(t, PodEphemeralContainers(pod, old), `spec.ephemeralContainers: Forbidden: existing ephemeral containers "d" may not be changed`)

	pod.Spec.EphemeralContainers = pod.Spec.EphemeralContainers[1:]
	check(t, PodEphemeralContainers(pod, old), `spec.ephemeralContainers: Forbidden: existing ephemeral containers "d" may not be removed`)

	pod = old.DeepCopy()
	bad := debugContainer("c")
	bad.Ports, bad.TargetContainerName = []corev1.ContainerPort{{ContainerPort: 1, Protocol: "TCP"}}, "nobody"
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, bad)
	check(t, PodEphemeralContainers(pod, old),
		`spec.ephemeralContainers[1].name: Duplicate value: "c"`,
		`spec.ephemeralContainers[1].targetContainerName: Not found: "nobody"`,
		"spec.ephemeralContainers[1].ports: Forbidden: cannot be set for an Ephemeral Container")

	old.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	check(t, PodEphemeralContainers(old, old), "[]: Forbidden: static pods do not support ephemeral containers")
}

func TestResize(t *testing.T) {
	request := func(p *corev1.Pod, name, value string) {
		if first(p).Resources.Requests == nil {
			first(p).Resources.Requests = corev1.ResourceList{}
		}
		first(p).Resources.Requests[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	old := newPod()
	request(old, "cpu", "100m")
	request(old, "ephemeral-storage", "1Gi")
	old.Status.QOSClass = corev1.PodQOSBurstable

	more := old.DeepCopy()
	request(more, "cpu", "200m")
	request(more, "memory", "1Mi")
	check(t, PodResize(more, old, corev1.PodQOSBurstable))
	check(t, PodResize(more, old, corev1.PodQOSGuaranteed), `spec: Invalid value: "Guaranteed": Pod QOS Class may not change as a result of resizing`)

	disk := old.DeepCopy()
	request(disk, "ephemeral-storage", "2Gi")
	check(t, PodResize(disk, old, corev1.PodQOSBurstable), "spec: Forbidden: only cpu and memory resources are mutable")

	less := old.DeepCopy()
	delete(first(less).Resources.Requests, corev1.ResourceCPU)
	check(t, PodResize(less, old, corev1.PodQOSBurstable), "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed")

	old.Spec.InitContainers = []corev1.Container{*first(old).DeepCopy()}
	old.Spec.InitContainers[0].Name = "init"
	init := old.DeepCopy()
	init.Spec.InitContainers[0].Resources.Requests["cpu"] = resource.MustParse("200m")
	check(t, PodResize(init, old, corev1.PodQOSBurstable))
	init.Spec.InitContainers[0].Image = "other"
	check(t, PodResize(init, old, corev1.PodQOSBurstable),
		"spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable")
	old.Spec.InitContainers = nil

	old.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	check(t, PodResize(more, old, corev1.PodQOSBurstable), "spec: Forbidden: Pod running on node without support for resize")
}

func TestStatus(t *testing.T) {
	old := newPod()
	old.Status.QOSClass = corev1.PodQOSBestEffort
	old.Spec.RestartPolicy = corev1.RestartPolicyNever
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	old.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: ended}}

	pod := old.DeepCopy()
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}}
	pod.Status.HostIP, pod.Status.HostIPs = "10.1.0.1", []corev1.HostIP{{IP: "10.1.0.2"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "a b"}}
	pod.Status.QOSClass = corev1.PodQOSBurstable
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	check(t, PodStatus(pod, old),
		`status.conditions[0].Type: Invalid value: "a b"`,
		`status.qosClass: Invalid value: "Burstable": field is immutable`,
		"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
		`status.podIPs: Invalid value: ["10.0.0.1","10.0.0.2"]: may specify no more than one IP for each IP family`,
		"status.hostIPs[0].ip: Invalid value: \"10.1.0.2\": must be equal to `hostIP`")
}

func TestClaimsInStatus(t *testing.T) {
	old := newPod()
	first(old).Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("1")}
	old.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimTemplateName: new("t")}}
	name := first(old).Name
	mapping := func(container, resource, request string) corev1.ContainerExtendedResourceRequest {
		return corev1.ContainerExtendedResourceRequest{ContainerName: container, ResourceName: resource, RequestName: request}
	}
	const at = "status.extendedResourceClaimStatus"
	for what, tc := range map[string]struct {
		claims   []corev1.PodResourceClaimStatus
		extended *corev1.PodExtendedResourceClaimStatus
		want     []string
	}{
		"fine": {[]corev1.PodResourceClaimStatus{{Name: "a", ResourceClaimName: new("p-a-1")}},
			&corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "p-x", RequestMappings: []corev1.ContainerExtendedResourceRequest{mapping(name, "example.com/gpu", "r"), mapping(name, "example.com/gpu", "s")}}, nil},
		"not needed": {[]corev1.PodResourceClaimStatus{{Name: "a"}}, nil, nil},
		"unknown, twice, no name": {[]corev1.PodResourceClaimStatus{{Name: "b"}, {Name: "a", ResourceClaimName: new("-")}, {Name: "a"}}, nil, []string{
			"status.resourceClaimStatuses[0].name: Invalid value", "status.resourceClaimStatuses[1].resourceClaimName: Invalid value",
			"status.resourceClaimStatuses[2].name: Duplicate value",
		}},
		"empty": {nil, &corev1.PodExtendedResourceClaimStatus{}, []string{at + ".requestMappings: Required value", at + ".resourceClaimName: Required value"}},
		"of nothing in the pod": {nil, &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "a/b", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			mapping("other", "example.com/gpu", "r"), mapping(name, "example.com/nic", "-"),
		}}, []string{at + ".requestMappings[0].containerName: Invalid value", at + ".requestMappings[1].resourceName: Invalid value", at + ".requestName: Invalid value", at + ".resourceClaimName: Invalid value"}},
		"twice": {nil, &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "x", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			mapping(name, "example.com/gpu", "r"), mapping(name, "example.com/gpu", "r"),
		}}, []string{at + ".requestMappings[1].containerName: Duplicate value", at + ".requestMappings[1].resourceName: Duplicate value", at + ".requestMappings[1].requestName: Duplicate value"}},
	} {
		t.Run(what, func(t *testing.T) {
			pod := old.DeepCopy()
			pod.Status.ResourceClaimStatuses, pod.Status.ExtendedResourceClaimStatus = tc.claims, tc.extended
			check(t, PodStatus(pod, old), tc.want...)
		})
	}
}
