package explain

import (
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/classes"
)

type serviceChange func(*ServiceFacts)

// service returns the explanation of one with port 80 for http, and the pods as endpoints.
func service(list []*v1.Pod, change ...serviceChange) Explanation {
	s := &v1.Service{ObjectMeta: meta("web"), Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeClusterIP, ClusterIP: "10.1.1.1", Selector: web, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
	}}
	f := ServiceFacts{About: About{Now: now}, Service: s, Pods: list, Slices: []*discoveryv1.EndpointSlice{{}}}
	for _, p := range list {
		ready := p.DeletionTimestamp == nil && p.Status.Conditions[0].Status == v1.ConditionTrue
		f.Slices[0].Endpoints = append(f.Slices[0].Endpoints, discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{
			Ready: &ready, Serving: new(true), Terminating: new(p.DeletionTimestamp != nil),
		}})
	}
	for _, c := range change {
		c(&f)
	}
	return Service(f)
}

func port(number int32, proto v1.Protocol) podChange {
	return func(p *v1.Pod) {
		p.Spec.Containers = []v1.Container{{Name: "c", Ports: []v1.ContainerPort{{Name: "http", ContainerPort: number, Protocol: proto}}}}
	}
}

func targets(p intstr.IntOrString) serviceChange {
	return func(f *ServiceFacts) { f.Service.Spec.Ports[0].TargetPort = p }
}

func labelled(key, value string) podChange { return func(p *v1.Pod) { p.Labels[key] = value } }

func selects(selector map[string]string) serviceChange {
	return func(f *ServiceFacts) { f.Service.Spec.Selector, f.Slices = selector, nil }
}

// policy selects all pods and allows the port; none, if it is 0.
func policy(name string, port, last int32) serviceChange {
	return func(f *ServiceFacts) {
		np := &networkingv1.NetworkPolicy{ObjectMeta: meta(name)}
		if port > 0 {
			p := networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(port))}
			if last > 0 {
				p.EndPort = &last
			}
			np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{p}}}
		}
		f.Policies = append(f.Policies, np)
	}
}

func TestService(t *testing.T) {
	http := port(8080, v1.ProtocolTCP)
	a := podOf("w", "a", http)
	one := []*v1.Pod{a}
	check(t, map[string]told{
		"well": {x: service(one), lacks: "It waits for", want: []string{
			"service ns/web: ClusterIP 10.1.1.1, 1 of 1 endpoint ready\nIt answers, with 1 ready endpoint.", "reached in the cluster as web.ns.svc, at 10.1.1.1, port 80/TCP"}},
		"typo":        {x: service(one, selects(map[string]string{"app": "wbe"})), want: []string{"It does not answer.", "pods of selector app=wbe", "pod a (app=web instead of wbe)"}},
		"one of two":  {x: service(one, selects(map[string]string{"app": "web", "tier": "front"})), want: []string{"pod a (without the label tier)"}},
		"nobody near": {x: service([]*v1.Pod{podOf("w", "a", labelled("app", "database"))}, selects(web)), want: []string{"none of the 1 pod of"}, lacks: "near"},
		"no selector": {x: service(nil, selects(nil)), want: []string{"nobody wrote endpoints", "kubernetes.io/service-name=web"}},
		"not ready":   {x: service([]*v1.Pod{podOf("w", "a", http, stuck)}), ask: "a", want: []string{"0 of 1 endpoint ready", "It does not answer.", "pod a, which the service selects"}},
		"some ready":  {x: service([]*v1.Pod{a, podOf("w", "b", http, stuck)}), ask: "b", want: []string{"It has 1 ready endpoint, but not all may be well: pod b"}},
		"published": {x: service([]*v1.Pod{podOf("w", "a", http, stuck)}, func(f *ServiceFacts) {
			f.Service.Spec.PublishNotReadyAddresses = true
			f.Slices[0].Endpoints[0].Conditions.Ready = new(true)
		}), want: []string{"It answers", "publishNotReadyAddresses"}},
		"ended":      {x: service([]*v1.Pod{podOf("w", "a", failed)}), want: []string{"all that it selects have ended: a"}},
		"leaving":    {x: service([]*v1.Pod{podOf("w", "a", http, going)}), want: []string{"It answers for as long as its last pods take to end", "all of its pods are being deleted: a"}},
		"name":       {x: service(one, targets(intstr.FromString("web"))), want: []string{"not all of it answers: target of port 80/TCP → web", `names a port "web"; declared are 8080/TCP (http)`}},
		"number":     {x: service(one, targets(intstr.FromInt32(8081))), want: []string{"may be well: target of port 80/TCP → 8081", "declares port 8081; declared are 8080/TCP (http)"}},
		"undeclared": {x: service([]*v1.Pod{podOf("w", "a")}, targets(intstr.FromInt32(8081))), want: []string{"It answers"}},
		"protocol":   {x: service([]*v1.Pod{podOf("w", "a", port(53, v1.ProtocolUDP))}), want: []string{"wrong protocol: the port of pod a is UDP, and the service's is TCP"}},
		"sidecar": {x: service([]*v1.Pod{podOf("w", "a", func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways), Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 1}}}}
		})}), want: []string{"It answers"}},
		"denied":           {x: service(one, policy("deny", 0, 0), policy("other", 90, 0)), want: []string{"port 80/TCP → http may be denied by policy deny, other"}},
		"allowed by one":   {x: service(one, policy("deny", 0, 0), policy("allow", 8080, 0)), want: []string{"It answers"}},
		"allowed by range": {x: service(one, policy("allow", 8000, 9000)), want: []string{"It answers"}},
		"egress only": {x: service(one, policy("e", 0, 0), func(f *ServiceFacts) {
			f.Policies[0].Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		}), want: []string{"It answers"}},
		"no slice": {x: service(one, func(f *ServiceFacts) { f.Slices = nil }), want: []string{"endpoint slice controller"}},
		"external": {x: service(nil, func(f *ServiceFacts) {
			f.Service.Spec.Type, f.Service.Spec.ExternalName = v1.ServiceTypeExternalName, "10.0.0.9"
		}),
			want: []string{"ExternalName 10.0.0.9", "an alias of 10.0.0.9", "an alias has to be a name"}},
		"headless": {x: service(one, func(f *ServiceFacts) { f.Service.Spec.ClusterIP = v1.ClusterIPNone }), want: []string{": headless, 1 of 1", "clients use the target ports"}},
		"balancer": {x: service(one, func(f *ServiceFacts) { f.Service.Spec.Type = v1.ServiceTypeLoadBalancer }), want: []string{"load balancer, for 1h0m0s"}},
	})
}

// The labels of ten thousand pods must not fill the screen.
func TestNearNamesAFew(t *testing.T) {
	var list []*v1.Pod
	for i := range 10000 {
		list = append(list, podOf("w", "p", labelled("tier", strings.Repeat("x", i%50))))
	}
	if got := near(map[string]string{"app": "web", "tier": "front"}, list); len(got) != mostNear || len(strings.Join(got, "")) > 500 {
		t.Errorf("%q", got)
	}
}

func TestAutoscaler(t *testing.T) {
	scale := func(kind autoscalingv2.HorizontalPodAutoscalerConditionType, status v1.ConditionStatus, reason string) Explanation {
		h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta("h"), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}, MaxReplicas: 5,
		}}
		h.Status.CurrentReplicas, h.Status.DesiredReplicas = 2, 2
		h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: kind, Status: status, Reason: reason, Message: "told", LastTransitionTime: before(time.Minute)}}
		return Autoscaler(AutoscalerFacts{About: About{Now: now}, Autoscaler: h})
	}
	check(t, map[string]told{
		"well":       {x: scale(autoscalingv2.ScalingActive, v1.ConditionTrue, "ValidMetricFound"), want: []string{"deployment/web has 2 replicas of 1 to 5", "It has the size that it wants: 2 replicas."}},
		"metric":     {x: scale(autoscalingv2.ScalingActive, v1.ConditionFalse, "FailedGetResourceMetric"), want: []string{"a metric, for 1m0s", "FailedGetResourceMetric: told"}},
		"off":        {x: scale(autoscalingv2.ScalingActive, v1.ConditionFalse, "ScalingDisabled"), want: []string{"replicas of deployment/web"}},
		"at rest":    {x: scale(autoscalingv2.ScaledToZero, v1.ConditionTrue, "ScaledToZero"), want: []string{"scaled its target to zero"}},
		"most":       {x: scale(autoscalingv2.ScalingLimited, v1.ConditionTrue, "TooManyReplicas"), want: []string{"its maximum", "spec.maxReplicas (5)"}},
		"least":      {x: scale(autoscalingv2.ScalingLimited, v1.ConditionTrue, "TooFewReplicas"), want: []string{"It has the size that it wants", "at its minimum (1)"}},
		"stabilized": {x: scale(autoscalingv2.AbleToScale, v1.ConditionTrue, "ScaleDownStabilized"), want: []string{"stabilization before it shrinks"}},
		"no target":  {x: scale(autoscalingv2.AbleToScale, v1.ConditionFalse, "FailedGetScale"), want: []string{"its target"}},
	})
}

func TestClaim(t *testing.T) {
	claim := func(change ...func(*ClaimFacts)) Explanation {
		c := &v1.PersistentVolumeClaim{ObjectMeta: meta("data"), Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: new("fast"),
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}},
		}}
		f := ClaimFacts{About: About{Now: now}, Claim: c}
		for _, x := range change {
			x(&f)
		}
		return Claim(f)
	}
	class := func(provisioner string, mode storagev1.VolumeBindingMode) func(*ClaimFacts) {
		return func(f *ClaimFacts) {
			f.Classes = []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: provisioner, VolumeBindingMode: &mode}}
		}
	}
	volume := func(name, size, class string) func(*ClaimFacts) {
		return func(f *ClaimFacts) {
			f.Volumes = append(f.Volumes, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
				StorageClassName: class, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			}})
		}
	}
	defaults := func(f *ClaimFacts) {
		f.Claim.Spec.StorageClassName = nil
		for i, mark := range []string{classes.StorageDefault, "storageclass.beta.kubernetes.io/is-default-class"} {
			name := []string{"old", "new"}[i]
			f.Classes = append(f.Classes, &storagev1.StorageClass{Provisioner: name, VolumeBindingMode: new(storagev1.VolumeBindingImmediate), ObjectMeta: metav1.ObjectMeta{
				Name: name, CreationTimestamp: before(time.Duration(9-i) * time.Minute), Annotations: map[string]string{mark: "true"},
			}})
		}
	}
	lost := func(f *ClaimFacts) { f.Claim.Spec.VolumeName, f.Claim.Status.Phase = "pv", v1.ClaimLost }
	belongs := func(f *ClaimFacts) {
		f.Volumes[0].Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: "other", UID: "x"}
	}
	user := func(f *ClaimFacts) {
		f.Pods = []*v1.Pod{podOf("w", "u", stuck, func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		})}
	}
	bound := func(f *ClaimFacts) {
		f.Claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}}
		f.Claim.Spec.VolumeName = "pv"
	}
	more := func(f *ClaimFacts) { f.Claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("5Gi") }
	attachment := func(change func(*storagev1.VolumeAttachment)) func(*ClaimFacts) {
		return func(f *ClaimFacts) {
			a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: before(time.Minute)}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: "n1"}}
			change(a)
			f.Attachments = append(f.Attachments, a)
		}
	}
	at, late := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	check(t, map[string]told{
		"bound": {x: claim(user, bound), want: []string{"It is bound to volume pv of 2Gi.", "note: used by pod u"}},
		"bound and ailing": {x: claim(bound, func(f *ClaimFacts) {
			f.Claim.Status.HealthStatus = &v1.VolumeHealthStatus{HealthConditions: []v1.VolumeHealthCondition{{Status: v1.VolumeHealthInaccessible, Reason: "VolumeNotFound"}}}
		}), want: []string{"It is bound to volume pv of 2Gi.", "note: its driver says that the volume is Inaccessible (VolumeNotFound)"}},
		"bound and unused": {x: claim(bound, func(f *ClaimFacts) {
			f.Claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimUnused, Status: v1.ConditionTrue, Reason: "NoPodsUsingPVC", LastTransitionTime: before(time.Minute)}}
		}), want: []string{"It is bound to volume pv of 2Gi.", "note: no pod uses it, for 1m0s"}, lacks: "NoPodsUsingPVC"},
		"attached": {x: claim(bound, attachment(func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })),
			want: []string{"It is bound to volume pv of 2Gi.", "note: attached to node n1, by driver csi.example.com"}},
		"attaching": {x: claim(bound, attachment(func(*storagev1.VolumeAttachment) {})),
			want: []string{"its attachment to node n1", "has not answered yet", "external-attacher of driver csi.example.com"}},
		"not attached": {x: claim(bound, attachment(func(a *storagev1.VolumeAttachment) { a.Status.AttachError = &storagev1.VolumeError{Message: "no room"} })),
			want: []string{"its attachment to node n1", "no room"}},
		"detaching": {x: claim(bound, attachment(func(a *storagev1.VolumeAttachment) {
			a.DeletionTimestamp, a.Status.Attached = new(before(time.Minute)), true
			a.Status.DetachError = &storagev1.VolumeError{Message: "still mounted"}
		})), want: []string{"its detachment from node n1", "still mounted", "no other node gets"}},
		"growing": {x: claim(bound, more, volume("pv", "2Gi", "fast"), func(f *ClaimFacts) {
			f.Volumes[0].Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "csi.example.com"}
		}), want: []string{"more room", "it has 2Gi and asks for 5Gi", "external-resizer of driver csi.example.com"}},
		"no room to grow": {x: claim(bound, more, volume("pv", "2Gi", "fast"), func(f *ClaimFacts) {
			f.Volumes[0].Annotations = map[string]string{provisionedVolume: classes.LocalProvisioner}
			f.Events = []v1.Event{{Reason: "VolumeResizeFailed", Message: "node n has room for 1Gi more"}}
		}), want: []string{"more room", "node n has room for 1Gi more", "the node of the volume has that much more room"}},
		"no class":         {x: claim(), want: []string{`storage class "fast" does not exist`, "no pod uses it"}},
		"no default":       {x: claim(func(f *ClaimFacts) { f.Claim.Spec.StorageClassName = nil }), want: []string{"no class is the default"}},
		"lost":             {x: claim(lost), want: []string{"volume pv", "does not exist any more", "a volume of that name comes back"}},
		"taken":            {x: claim(lost, volume("pv", "2Gi", "fast"), belongs), want: []string{"belongs to claim ns/other", "make a new claim"}},
		"too small":        {x: claim(func(f *ClaimFacts) { f.Claim.Spec.VolumeName = "pv" }, volume("pv", "1Gi", "fast")), want: []string{"it does not fit: it has only 1Gi of 2Gi"}},
		"failed":           {x: claim(class(noProvisioner, at), volume("a", "2Gi", "fast"), func(f *ClaimFacts) { f.Volumes[0].Status.Phase = v1.VolumeFailed }), want: []string{"no volume fits: a has failed"}},
		"pods with nodes":  {x: claim(class("x", late), user, func(f *ClaimFacts) { f.Pods[0].Spec.NodeName = "n" }), want: []string{"those that use it have theirs already: u", "names its node itself"}},
		"several defaults": {x: claim(defaults), want: []string{"provisioner new"}},
		"first consumer":   {x: claim(class("x", late)), want: []string{"its first consumer", "there is none"}},
		"its pod":          {x: claim(class("x", late), user), ask: "u", want: []string{"pod u, its first consumer, which has no node yet"}},
		"by hand":          {x: claim(class(noProvisioner, at), volume("a", "1Gi", "fast"), volume("b", "4Gi", "slow")), want: []string{`no volume fits: a has only 1Gi of 2Gi, b has class "slow"`}},
		"would fit":        {x: claim(class(noProvisioner, at), volume("a", "2Gi", "fast")), want: []string{"volume a would fit"}},
		"nobody asked":     {x: claim(class("x", at)), want: []string{"provisioner x", "nobody has asked it for a volume"}},
		"asked":            {x: claim(class("x", at), func(f *ClaimFacts) { f.Claim.Annotations = map[string]string{provisionedBy: "x"} }), want: []string{"it was asked for a volume and has not answered"}},
		"asked a node": {x: claim(class(classes.LocalProvisioner, late), func(f *ClaimFacts) {
			f.Claim.Annotations = map[string]string{provisionedBy: classes.LocalProvisioner, selectedNode: "n1"}
		}, user), want: []string{"provisioner local.wherry.dev", "node n1 was asked to make it on its disk and has not answered"}},
		"refused":        {x: claim(class("x", at), func(f *ClaimFacts) { f.Events = []v1.Event{{Reason: "ProvisioningFailed", Message: "no room"}} }), want: []string{"status: no room"}},
		"volume is gone": {x: claim(func(f *ClaimFacts) { f.Claim.Spec.VolumeName = "pv" }), want: []string{"volume pv", "it does not exist"}},
		"in use": {x: claim(user, func(f *ClaimFacts) {
			f.Claim.DeletionTimestamp, f.Claim.Finalizers = new(before(time.Minute)), []string{"kubernetes.io/pvc-protection"}
		}), want: []string{"Terminating", "the pods that use it are gone: u"}},
		"unread": {x: claim(func(f *ClaimFacts) { f.ClassesUnread, f.VolumesUnread = true, true }), want: []string{"which volumes there are is not known"}},
	})
}
