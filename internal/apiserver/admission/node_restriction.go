package admission

import (
	"context"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/storage/ephemeral"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"wherry.dev/internal/api/pods"
	authnode "wherry.dev/internal/apiserver/auth/nodeauthorizer"
	"wherry.dev/internal/apiserver/registry"
)

// nodeRestriction limits a node to its own objects: its Node, CSINode and Lease, and the pods bound
// to it, of which it may create only mirror pods.
type nodeRestriction struct {
	lookup *registry.Lookup
	may    authorizer.Authorizer
}

var _ admission.MutationInterface = (*nodeRestriction)(nil)

func (*nodeRestriction) Handles(op admission.Operation) bool { return op != admission.Connect }

func (p *nodeRestriction) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	name, isNode := authnode.Name(a.GetUserInfo())
	if !isNode {
		return nil
	}
	if name == "" {
		return forbid(a, "could not determine node from user %q", a.GetUserInfo().GetName())
	}
	switch a.GetResource().GroupResource() {
	case podsResource:
		return p.admitPod(ctx, name, a)
	case nodesResource:
		return admitNode(name, a)
	case claimsResource:
		return admitClaim(name, a)
	case accountsResource:
		return p.admitToken(ctx, name, a)
	case leasesResource:
		return admitLease(name, a)
	case csiNodesResource:
		return admitCSINode(name, a)
	case podCertsResource:
		return p.admitPodCertificate(ctx, name, a)
	case requestsResource:
		return admitSigningRequest(name, a)
	}
	return nil
}

func (p *nodeRestriction) admitPod(ctx context.Context, node string, a admission.Attributes) error {
	switch a.GetSubresource() {
	case "":
		switch a.GetOperation() {
		case admission.Create:
			return p.admitMirror(ctx, node, a)
		case admission.Delete:
			return p.ownPod(ctx, node, a, a.GetName(), "node %q can only delete pods with spec.nodeName set to itself")
		default:
			return forbid(a, "unexpected operation %q, node %q can only create and delete mirror pods", a.GetOperation(), node)
		}
	case "status":
		return admitPodStatus(node, a)
	case "eviction":
		eviction, ok := a.GetObject().(*policyv1.Eviction)
		if !ok {
			return forbid(a, "unexpected type %T", a.GetObject())
		}
		name := a.GetName()
		if name == "" {
			name = eviction.Name
		}
		return p.ownPod(ctx, node, a, name, "node %s can only evict pods with spec.nodeName set to itself")
	default:
		return forbid(a, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.GetSubresource())
	}
}

// ownPod returns an error, worded by refusal, if the pod is not bound to the node. The cache may
// not have seen the binding yet, so before it refuses, it reads the pod from storage.
func (p *nodeRestriction) ownPod(ctx context.Context, node string, a admission.Attributes, name, refusal string) error {
	for _, get := range []func(context.Context, *registry.Lookup, groupResource, string, string) (*corev1.Pod, error){
		registry.Get[*corev1.Pod], registry.GetLive[*corev1.Pod],
	} {
		pod, err := get(ctx, p.lookup, podsResource, a.GetNamespace(), name)
		if apierrors.IsNotFound(err) {
			return err
		}
		if err != nil {
			return admission.NewForbidden(a, err)
		}
		if pod.Spec.NodeName == node {
			return nil
		}
	}
	return forbid(a, refusal, node)
}

func (p *nodeRestriction) admitMirror(ctx context.Context, node string, a admission.Attributes) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	if !pods.IsMirror(pod) {
		return forbid(a, "pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %q can only create pods with spec.nodeName set to itself", node)
	}
	if len(pod.OwnerReferences) > 1 {
		return forbid(a, "node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(pod.OwnerReferences) == 0 {
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	}
	owner := pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return forbid(a, "node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return forbid(a, "node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	n, err := registry.Get[*corev1.Node](ctx, p.lookup, nodesResource, "", node)
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return forbid(a, "error looking up node %s to verify uid: %w", node, err)
	}
	if owner.UID != n.UID {
		return forbid(a, "node %s UID mismatch: expected %s got %s", node, owner.UID, n.UID)
	}
	if kind := referenced(pod); kind != "" {
		return forbid(a, "node %q can not create pods that reference %s", node, kind)
	}
	return nil
}

// referenced returns the first kind of API object that a pod refers to, or "".
func referenced(pod *corev1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	if len(secretRefs(pod)) > 0 {
		return "secrets"
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims"
	}
	for c := range pods.Containers(&pod.Spec) {
		if usesConfigMap(c) {
			return "configmaps"
		}
	}
	for i := range pod.Spec.Volumes {
		if kind := referencedByVolume(&pod.Spec.Volumes[i]); kind != "" {
			return kind
		}
	}
	return ""
}

func usesConfigMap(c *corev1.Container) bool {
	return slices.ContainsFunc(c.EnvFrom, func(f corev1.EnvFromSource) bool { return f.ConfigMapRef != nil }) ||
		slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil })
}

func referencedByVolume(v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistentvolumeclaims"
	case v.ConfigMap != nil:
		return "configmaps"
	case v.Projected != nil:
		for _, src := range v.Projected.Sources {
			switch {
			case src.ConfigMap != nil:
				return "configmaps"
			case src.ServiceAccountToken != nil:
				return "serviceaccounts"
			case src.ClusterTrustBundle != nil:
				return "clustertrustbundles"
			case src.PodCertificate != nil:
				return "podcertificates"
			}
		}
	}
	return ""
}

func admitPodStatus(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Update {
		return forbid(a, "unexpected operation %q", a.GetOperation())
	}
	old, ok := a.GetOldObject().(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetOldObject())
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	switch {
	case old.Spec.NodeName != node:
		return forbid(a, "node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !maps.Equal(old.Labels, pod.Labels):
		return forbid(a, "node %q cannot update labels through pod status", node)
	case !apiequality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return forbid(a, "node %q cannot update resource claim statues", node)
	case !apiequality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return forbid(a, "node %q cannot update extended resource claim status", node)
	}
	return nil
}

func admitNode(node string, a admission.Attributes) error {
	if a.GetName() != node && (a.GetName() != "" || nodeNameOf(a) != node) {
		return forbid(a, "node %q is not allowed to modify node %q", node, a.GetName())
	}
	n, _ := a.GetObject().(*corev1.Node)
	switch a.GetOperation() {
	case admission.Create:
		if n == nil {
			return forbid(a, "unexpected type %T", a.GetObject())
		}
		if n.Spec.ConfigSource != nil {
			return forbid(a, "node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if labels := forbiddenLabels(n.Labels, nil); len(labels) > 0 {
			return forbid(a, "node %q is not allowed to set the following labels: %s", node, strings.Join(labels, ", "))
		}
	case admission.Update:
		old, ok := a.GetOldObject().(*corev1.Node)
		if !ok || n == nil {
			return forbid(a, "unexpected type %T", a.GetObject())
		}
		return admitNodeUpdate(node, a, n, old)
	}
	return nil
}

func nodeNameOf(a admission.Attributes) string {
	if n, ok := a.GetObject().(*corev1.Node); ok {
		return n.Name
	}
	return ""
}

func admitNodeUpdate(node string, a admission.Attributes, n, old *corev1.Node) error {
	switch {
	case n.Spec.ConfigSource != nil && !apiequality.Semantic.DeepEqual(n.Spec.ConfigSource, old.Spec.ConfigSource):
		return forbid(a, "node %q is not allowed to update configSource to a new non-nil configSource", node)
	case !apiequality.Semantic.DeepEqual(n.Spec.Taints, old.Spec.Taints):
		return forbid(a, "node %q is not allowed to modify taints", node)
	case !apiequality.Semantic.DeepEqual(n.OwnerReferences, old.OwnerReferences):
		return forbid(a, "node %q is not allowed to modify ownerReferences", node)
	}
	if labels := forbiddenLabels(n.Labels, old.Labels); len(labels) > 0 {
		return forbid(a, "is not allowed to modify labels: %s", strings.Join(labels, ", "))
	}
	return nil
}

// forbiddenLabels returns the changed labels that a node must not choose itself. With them, a node
// could attract other users' pods.
func forbiddenLabels(labels, old map[string]string) []string {
	var out []string
	changed := func(key string) {
		namespace, _, ok := strings.Cut(key, "/")
		if !ok {
			return
		}
		restricted := within(namespace, corev1.LabelNamespaceNodeRestriction)
		ours := within(namespace, "kubernetes.io") || within(namespace, "k8s.io")
		if restricted || (ours && !kubeletapis.IsKubeletLabel(key)) {
			out = append(out, key)
		}
	}
	for key, v := range labels {
		if was, ok := old[key]; !ok || was != v {
			changed(key)
		}
	}
	for key := range old {
		if _, ok := labels[key]; !ok {
			changed(key)
		}
	}
	slices.Sort(out)
	return out
}

func within(namespace, domain string) bool {
	return namespace == domain || strings.HasSuffix(namespace, "."+domain)
}

// admitClaim lets a node change only the capacity and conditions of a claim.
func admitClaim(node string, a admission.Attributes) error {
	if a.GetSubresource() != "status" {
		return forbid(a, "may only update PVC status")
	}
	old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetOldObject())
	}
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	old, claim = old.DeepCopy(), claim.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{old, claim} {
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
	}
	if !apiequality.Semantic.DeepEqual(old, claim) {
		return forbid(a, "node %q is not allowed to update fields other than status.quantity and status.conditions", node)
	}
	return nil
}

// admitToken lets a node request only tokens of its own pods, for audiences that these name.
func (p *nodeRestriction) admitToken(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "token" {
		return nil
	}
	req, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	ref := req.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	if err := p.ownPod(ctx, node, a, ref.Name, "node requested token bound to a pod scheduled on a different node (%s)"); err != nil {
		return err
	}
	pod, err := registry.Get[*corev1.Pod](ctx, p.lookup, podsResource, a.GetNamespace(), ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return forbid(a, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	return p.admitAudience(ctx, a, pod, req.Spec.Audiences)
}

func (p *nodeRestriction) admitAudience(ctx context.Context, a admission.Attributes, pod *corev1.Pod, audiences []string) error {
	if len(audiences) > 1 {
		return forbid(a, "node may only request 0 or 1 audiences")
	}
	audience := ""
	if len(audiences) == 1 {
		audience = audiences[0]
	}
	for i := range pod.Spec.Volumes {
		if pr := pod.Spec.Volumes[i].Projected; pr != nil {
			for _, src := range pr.Sources {
				if src.ServiceAccountToken != nil && src.ServiceAccountToken.Audience == audience {
					return nil
				}
			}
		}
	}
	if p.driverAsks(ctx, pod, audience) {
		return nil
	}
	user := a.GetUserInfo()
	decision, _, err := p.may.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: "request-serviceaccounts-token-audience", Namespace: a.GetNamespace(),
		APIVersion: "v1", Resource: audience, Name: a.GetName(), ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return forbid(a, "audience %q not found in pod spec volume, error authorizing %s to request tokens for this audience: %w", audience, user.GetName(), err)
	}
	return forbid(a, "audience %q not found in pod spec volume, %s is not authorized to request tokens for this audience", audience, user.GetName())
}

// driverAsks reports whether the driver of a pod's CSI volume is given tokens for an audience.
func (p *nodeRestriction) driverAsks(ctx context.Context, pod *corev1.Pod, audience string) bool {
	for i := range pod.Spec.Volumes {
		name := p.driverOf(ctx, pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		driver, err := registry.Get[*storagev1.CSIDriver](ctx, p.lookup, storagev1.Resource("csidrivers"), "", name)
		if err == nil && slices.ContainsFunc(driver.Spec.TokenRequests, func(r storagev1.TokenRequest) bool { return r.Audience == audience }) {
			return true
		}
	}
	return false
}

// driverOf returns the CSI driver of a volume; "" for none.
func (p *nodeRestriction) driverOf(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) string {
	claim := ""
	switch {
	case v.CSI != nil:
		return v.CSI.Driver
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = ephemeral.VolumeClaimName(pod, v)
	default:
		return ""
	}
	c, err := registry.Get[*corev1.PersistentVolumeClaim](ctx, p.lookup, corev1.Resource("persistentvolumeclaims"), pod.Namespace, claim)
	if err != nil || c.Spec.VolumeName == "" {
		return ""
	}
	pv, err := registry.Get[*corev1.PersistentVolume](ctx, p.lookup, corev1.Resource("persistentvolumes"), "", c.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.Driver
}

// admitLease lets a node write only the lease with its name in kube-node-lease.
func admitLease(node string, a admission.Attributes) error {
	if a.GetNamespace() != corev1.NamespaceNodeLease {
		return forbid(a, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	name := a.GetName()
	if lease, ok := a.GetObject().(*coordinationv1.Lease); ok && a.GetOperation() == admission.Create {
		name = lease.Name
	}
	if name != node {
		return forbid(a, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

// admitCSINode lets a node write only the CSINode with its name.
func admitCSINode(node string, a admission.Attributes) error {
	name := a.GetName()
	if n, ok := a.GetObject().(*storagev1.CSINode); ok && a.GetOperation() == admission.Create {
		name = n.Name
	}
	if name != node {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	return nil
}
