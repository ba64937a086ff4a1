// Package defaults fills in what an object leaves unset, as the Kubernetes API reference documents
// it. All functions are pure and idempotent: they run on every decoding, of a request as well as
// from storage.
package defaults

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Register registers the functions with a scheme.
func Register(s *runtime.Scheme) {
	add(s, Pod)
	add(s, ReplicaSet)
	add(s, Deployment)
	add(s, DaemonSet)
	add(s, StatefulSet)
	add(s, ReplicationController)
	add(s, PodTemplate)
	add(s, Job)
	add(s, CronJob)
	addList(s, &corev1.PodList{}, func(l *corev1.PodList) []corev1.Pod { return l.Items }, Pod)
	add(s, Namespace)
	addList(s, &corev1.NamespaceList{}, func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items }, Namespace)
	add(s, Node)
	addList(s, &corev1.NodeList{}, func(l *corev1.NodeList) []corev1.Node { return l.Items }, Node)
	add(s, Secret)
	add(s, Service)
	add(s, Endpoints)
	add(s, PersistentVolume)
	add(s, PersistentVolumeClaim)
	add(s, LimitRange)
	add(s, EndpointSlice)
	add(s, RoleBinding)
	add(s, ClusterRoleBinding)
	add(s, PriorityClass)
	add(s, PodGroup)
	add(s, StorageClass)
	add(s, CSIDriver)
	add(s, VolumeAttachment)
	add(s, PodCertificateRequest)
	add(s, NetworkPolicy)
	add(s, IngressClass)
	add(s, HorizontalPodAutoscaler)
	add(s, HorizontalPodAutoscalerV1)
	add(s, ResourceClaim)
	add(s, ResourceClaimTemplate)
	add(s, ResourceSlice)
	add(s, DeviceTaintRule)
	add(s, MutatingWebhookConfiguration)
	add(s, ValidatingWebhookConfiguration)
	add(s, ValidatingAdmissionPolicy)
	add(s, ValidatingAdmissionPolicyBinding)
	add(s, MutatingAdmissionPolicy)
	add(s, MutatingAdmissionPolicyBinding)
	add(s, FlowSchema)
	add(s, PriorityLevelConfiguration)
	add(s, func(o *corev1.PodLogOptions) { setPtr(&o.Stream, corev1.LogStreamAll) })
	add(s, func(o *corev1.PodExecOptions) { o.Stdout, o.Stderr = true, true })
	add(s, func(o *corev1.PodAttachOptions) { o.Stdout, o.Stderr = true, true })
}

func add[T any, PT interface {
	*T
	runtime.Object
}](s *runtime.Scheme, f func(*T)) {
	s.AddTypeDefaultingFunc(PT(new(T)), func(obj any) { f(obj.(*T)) })
}

func addList[L runtime.Object, T any](s *runtime.Scheme, list L, items func(L) []T, f func(*T)) {
	s.AddTypeDefaultingFunc(list, func(obj any) {
		all := items(obj.(L))
		for i := range all {
			f(&all[i])
		}
	})
}

// set sets *p to value if it is the zero value.
func set[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// setPtr points *p to value if it is nil.
func setPtr[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

// Namespace gives every namespace a label with its name.
func Namespace(ns *corev1.Namespace) {
	if ns.Name != "" {
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[corev1.LabelMetadataName] = ns.Name
	}
	set(&ns.Status.Phase, corev1.NamespaceActive)
}

// Node makes all of a node's capacity allocatable unless the node says otherwise.
func Node(n *corev1.Node) {
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	roundUp(n.Status.Capacity)
	roundUp(n.Status.Allocatable)
	podCIDRs(&n.Spec)
}

// podCIDRs makes the two fields agree. If they differ, the older one wins.
func podCIDRs(s *corev1.NodeSpec) {
	switch {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
}

// Secret makes a secret opaque unless it has a type, and moves stringData, which is write-only,
// into data. It replaces keys that exist there.
func Secret(s *corev1.Secret) {
	set(&s.Type, corev1.SecretTypeOpaque)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

// Endpoints sets the protocol of ports to TCP.
func Endpoints(e *corev1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			set(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

// EndpointSlice sets the name of ports to "" and their protocol to TCP.
func EndpointSlice(e *discoveryv1.EndpointSlice) {
	for i := range e.Ports {
		setPtr(&e.Ports[i].Name, "")
		setPtr(&e.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// RoleBinding fills in the API groups of the role and the subjects.
func RoleBinding(b *rbacv1.RoleBinding) {
	set(&b.RoleRef.APIGroup, rbacv1.GroupName)
	subjects(b.Subjects)
}

// ClusterRoleBinding fills in the API groups of the role and the subjects.
func ClusterRoleBinding(b *rbacv1.ClusterRoleBinding) {
	set(&b.RoleRef.APIGroup, rbacv1.GroupName)
	subjects(b.Subjects)
}

func subjects(list []rbacv1.Subject) {
	for i := range list {
		if list[i].Kind == rbacv1.UserKind || list[i].Kind == rbacv1.GroupKind {
			set(&list[i].APIGroup, rbacv1.GroupName)
		}
	}
}

// PodGroup defaults a pod group: its pods can be disrupted one by one.
func PodGroup(g *schedulingv1beta1.PodGroup) {
	if g.Spec.DisruptionMode == nil {
		g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}}
	}
}

// PriorityClass lets pods of the class preempt others.
func PriorityClass(c *schedulingv1.PriorityClass) {
	setPtr(&c.PreemptionPolicy, corev1.PreemptLowerPriority)
}

// PersistentVolume retains a released volume, and puts a file system on it.
func PersistentVolume(v *corev1.PersistentVolume) {
	set(&v.Status.Phase, corev1.VolumePending)
	set(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	setPtr(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	if v.Spec.HostPath != nil {
		setPtr(&v.Spec.HostPath.Type, corev1.HostPathUnset)
	}
	if v.Spec.ISCSI != nil {
		set(&v.Spec.ISCSI.ISCSIInterface, "default")
	}
	roundUp(v.Spec.Capacity)
}

// PersistentVolumeClaim requests a file system.
func PersistentVolumeClaim(c *corev1.PersistentVolumeClaim) {
	set(&c.Status.Phase, corev1.ClaimPending)
	claimSpec(&c.Spec)
	roundUp(c.Status.Capacity)
}

func claimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	setPtr(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundUp(spec.Resources.Limits)
	roundUp(spec.Resources.Requests)
}

// LimitRange derives a container's default limit from the maximum, and its default request from the
// default limit or the minimum.
func LimitRange(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			roundUp(list)
		}
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		fill(&item.Default, item.Max)
		fill(&item.DefaultRequest, item.Default)
		fill(&item.DefaultRequest, item.Min)
	}
}

// fill adds to *list what it lacks. Afterwards *list is not nil.
func fill(list *corev1.ResourceList, from corev1.ResourceList) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	missing := maps.Clone(from)
	for name := range *list {
		delete(missing, name)
	}
	for name, q := range missing {
		(*list)[name] = q.DeepCopy()
	}
}

// milli is the finest resource quantity that the API keeps.
const milli = -3

func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		if !q.RoundUp(milli) {
			list[name] = q
		}
	}
}

// Service makes a service cluster-wide and TCP, without session affinity.
func Service(s *corev1.Service) {
	spec := &s.Spec
	set(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		c := spec.SessionAffinityConfig
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)},
			}
		}
	}
	set(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		set(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	external := spec.Type == corev1.ServiceTypeLoadBalancer || spec.Type == corev1.ServiceTypeNodePort ||
		(spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0)
	if external {
		set(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type != corev1.ServiceTypeExternalName {
		setPtr(&spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		setPtr(&spec.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				setPtr(&in.IPMode, corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}
