package nodeauthorizer

import (
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/apiserver/auth/policy"
	"wherry.dev/internal/apiserver/auth/rbac"
)

// objects reads what the index does not have.
type objects interface {
	// PodsOn returns the pods bound to a node, read from storage itself.
	PodsOn(ctx context.Context, node string) ([]corev1.Pod, error)
	// Volume returns a persistent volume.
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	// VolumeOf returns the volume that a claim is bound to; nil if it is not bound.
	VolumeOf(ctx context.Context, namespace, claim string) (*corev1.PersistentVolume, error)
	// NodeOf returns the node that a volume attachment or a pod certificate request is for.
	NodeOf(ctx context.Context, resource schema.GroupResource, namespace, name string) (string, error)
}

// Authorizer decides about requests of nodes, and has no opinion about others.
type Authorizer struct {
	authorizer.AuthorizerFunc
	// VolumeHealth: nodes write the status of their CSINodes (gate CSIVolumeHealth).
	VolumeHealth bool

	index   *Index
	objects objects
	rules   []rbacv1.PolicyRule
}

var _ authorizer.Authorizer = (*Authorizer)(nil)

// NewAuthorizer returns an authorizer over the index.
func NewAuthorizer(index *Index, objects objects) *Authorizer {
	a := &Authorizer{index: index, objects: objects, rules: policy.NodeRules()}
	a.AuthorizerFunc = a.authorize
	return a
}

// RulesFor implements authorizer.RuleResolver: a node's rights cannot be listed.
func (a *Authorizer) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, isNode := Name(u); isNode {
		return nil, nil, true, fmt.Errorf("node authorizer does not support user rule resolution")
	}
	return nil, nil, false, nil
}

func (a *Authorizer) authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	node, isNode := Name(attrs.GetUser())
	if !isNode {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if node == "" {
		return refuse("unknown node for user %q", attrs.GetUser().GetName())
	}
	if attrs.IsResourceRequest() {
		if decide := a.special(schema.GroupResource{Group: attrs.GetAPIGroup(), Resource: attrs.GetResource()}); decide != nil {
			return decide(ctx, node, attrs)
		}
	}
	for i := range a.rules {
		if rbac.Allows(&a.rules[i], attrs) {
			return allow()
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// decide authorizes requests for one kind of object, limited to the objects of the node.
type decide func(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error)

func (a *Authorizer) special(resource schema.GroupResource) decide {
	switch resource {
	case schema.GroupResource{Resource: "secrets"}:
		return a.secrets
	case schema.GroupResource{Resource: "configmaps"}:
		return a.reading(configMap)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		return a.claims
	case schema.GroupResource{Resource: "persistentvolumes"}:
		return a.volumes
	case schema.GroupResource{Resource: "serviceaccounts"}:
		return a.accounts
	case schema.GroupResource{Resource: "nodes"}:
		return nodes
	case schema.GroupResource{Resource: "pods"}:
		return a.pods
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return leases
	case schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattachments"}:
		return a.ofNode
	case schema.GroupResource{Group: certificatesv1.GroupName, Resource: "podcertificaterequests"}:
		return a.certificateRequests
	case schema.GroupResource{Group: storagev1.GroupName, Resource: "csinodes"}:
		return a.csiNodes
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return a.getting(resourceClaim)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return resourceSlices
	}
	return nil
}

func allow() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "", nil }

func refuse(format string, args ...any) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, fmt.Sprintf(format, args...), nil
}

// related allows what a pod of the node refers to. The index follows storage with a small delay,
// and a kubelet asks at once when it sees a new pod, so before refusing, related checks storage.
func (a *Authorizer) related(ctx context.Context, node string, o object) (authorizer.Decision, string, error) {
	if o.name == "" {
		return refuse("No Object name found")
	}
	if a.index.refers(node, o) {
		return allow()
	}
	pods, err := a.objects.PodsOn(ctx, node)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("pods of node %s: %w", node, err)
	}
	for i := range pods {
		if pods[i].Namespace == o.namespace && slices.Contains(refsOf(&pods[i]), o.ref) {
			return allow()
		}
	}
	return refuse("no relationship found between node '%s' and this object", node)
}

// reading allows get, list and watch of single objects.
func (a *Authorizer) reading(k kind) decide {
	return func(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
		switch {
		case !slices.Contains([]string{"get", "list", "watch"}, attrs.GetVerb()):
			return refuse("can only read resources of this type")
		case attrs.GetSubresource() != "":
			return refuse("cannot read subresource")
		case attrs.GetNamespace() == "":
			return refuse("can only read namespaced object of this type")
		}
		return a.related(ctx, node, object{attrs.GetNamespace(), ref{k, attrs.GetName()}})
	}
}

// secrets allows a node to read the secrets that its pods refer to, and to get those of the volumes of their claims.
func (a *Authorizer) secrets(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.reading(secret)(ctx, node, attrs)
	if decision == authorizer.DecisionAllow || err != nil || attrs.GetVerb() != "get" || attrs.GetSubresource() != "" || attrs.GetName() == "" {
		return decision, reason, err
	}
	pods, err := a.objects.PodsOn(ctx, node)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("pods of node %s: %w", node, err)
	}
	for i := range pods {
		for _, r := range refsOf(&pods[i]) {
			if r.kind != claim {
				continue
			}
			volume, err := a.objects.VolumeOf(ctx, pods[i].Namespace, r.name)
			if err == nil && volume != nil && needsSecret(volume, attrs.GetNamespace(), attrs.GetName()) {
				return allow()
			}
		}
	}
	return decision, reason, nil
}

// needsSecret reports whether a node needs a secret for a volume.
func needsSecret(volume *corev1.PersistentVolume, namespace, name string) bool {
	var refs []*corev1.SecretReference
	if csi := volume.Spec.CSI; csi != nil {
		refs = []*corev1.SecretReference{csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.NodeExpandSecretRef}
	}
	refs = append(refs, attachments.ISCSISecret(volume))
	return slices.ContainsFunc(refs, func(r *corev1.SecretReference) bool { return r != nil && r.Namespace == namespace && r.Name == name })
}

// getting allows get of single objects.
func (a *Authorizer) getting(k kind) decide {
	return func(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
		if attrs.GetVerb() != "get" {
			return refuse("can only get individual resources of this type")
		}
		if attrs.GetSubresource() != "" {
			return refuse("cannot get subresource")
		}
		return a.related(ctx, node, object{attrs.GetNamespace(), ref{k, attrs.GetName()}})
	}
}

// claims allows a node to read single claims of its pods. Upstream allows get alone; that a node may watch what it may
// get as often as it likes takes nothing from anybody.
func (a *Authorizer) claims(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if attrs.GetSubresource() != "status" {
		return a.reading(claim)(ctx, node, attrs)
	}
	if v := attrs.GetVerb(); v != "update" && v != "patch" {
		return refuse("can only get/update/patch this type")
	}
	return a.related(ctx, node, object{attrs.GetNamespace(), ref{claim, attrs.GetName()}})
}

// volumes allows a node to get the volumes of claims that its pods use.
func (a *Authorizer) volumes(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if attrs.GetVerb() != "get" || attrs.GetSubresource() != "" || attrs.GetName() == "" {
		return refuse("can only get individual resources of this type")
	}
	volume, err := a.objects.Volume(ctx, attrs.GetName())
	if err != nil || volume.Spec.ClaimRef == nil {
		return refuse("no relationship found between node '%s' and this object", node)
	}
	return a.related(ctx, node, object{volume.Spec.ClaimRef.Namespace, ref{claim, volume.Spec.ClaimRef.Name}})
}

// ofNode allows a node to get single objects that name it.
func (a *Authorizer) ofNode(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case attrs.GetVerb() != "get":
		return refuse("can only get individual resources of this type")
	case attrs.GetSubresource() != "":
		return refuse("cannot get subresource")
	case attrs.GetName() == "":
		return refuse("No Object name found")
	}
	resource := schema.GroupResource{Group: attrs.GetAPIGroup(), Resource: attrs.GetResource()}
	if of, err := a.objects.NodeOf(ctx, resource, attrs.GetNamespace(), attrs.GetName()); err != nil || of != node {
		return refuse("no relationship found between node '%s' and this object", node)
	}
	return allow()
}

// certificateRequests allows a node to create requests, and to read its own.
func (a *Authorizer) certificateRequests(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if attrs.GetSubresource() != "" {
		return refuse("nodes may not access the status subresource of PodCertificateRequests")
	}
	switch attrs.GetVerb() {
	case "create":
		return allow() // NodeRestriction checks for which pod
	case "get":
		return a.ofNode(ctx, node, attrs)
	case "list", "watch":
		return selecting(node, attrs, "list/watch podcertificaterequests with nodeName field selector")
	}
	return refuse("nodes may not %s podcertificaterequests", attrs.GetVerb())
}

// selecting allows requests that select objects that name the node, and nothing else.
func selecting(node string, attrs authorizer.Attributes, what string) (authorizer.Decision, string, error) {
	requirements, err := attrs.GetFieldSelector()
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	for _, r := range requirements {
		if r.Field == "spec.nodeName" && r.Operator == selection.Equals && r.Value == node {
			return allow()
		}
	}
	return refuse("can only %s", what)
}

// resourceSlices allows only deletecollection, for what drivers left of the node.
func resourceSlices(_ context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if attrs.GetVerb() != "deletecollection" || attrs.GetSubresource() != "" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return selecting(node, attrs, "deletecollection resourceslices with nodeName field selector")
}

func (a *Authorizer) csiNodes(_ context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	switch attrs.GetVerb() {
	case "get", "create", "update", "patch", "delete":
	default:
		return refuse("can only get, create, update, patch, or delete a CSINode")
	}
	switch sub := attrs.GetSubresource(); {
	case sub == "":
	case sub != "status" || !a.VolumeHealth:
		return refuse("cannot authorize CSINode subresources")
	case attrs.GetVerb() == "create", attrs.GetVerb() == "delete":
		return refuse("can only get, update, or patch the status of a CSINode")
	}
	// A create has no name yet; NodeRestriction checks it.
	if attrs.GetVerb() != "create" && attrs.GetName() != node {
		return refuse("can only access CSINode with the same name as the requesting node")
	}
	return allow()
}

func (a *Authorizer) accounts(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if attrs.GetVerb() == "get" && attrs.GetSubresource() == "" {
		return a.reading(serviceAccount)(ctx, node, attrs)
	}
	if attrs.GetVerb() != "create" || attrs.GetName() == "" {
		return refuse("can only create tokens for individual service accounts")
	}
	if attrs.GetSubresource() != "token" {
		return refuse("can only create token subresource of serviceaccount")
	}
	return a.related(ctx, node, object{attrs.GetNamespace(), ref{serviceAccount, attrs.GetName()}})
}

func leases(_ context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	switch attrs.GetVerb() {
	case "get", "create", "update", "patch", "delete":
	default:
		return refuse("can only get, create, update, patch, or delete a node lease")
	}
	if attrs.GetNamespace() != corev1.NamespaceNodeLease {
		return refuse("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	// A create has no name yet; NodeRestriction checks it.
	if attrs.GetVerb() != "create" && attrs.GetName() != node {
		return refuse("can only access node lease with the same name as the requesting node")
	}
	return allow()
}

func nodes(_ context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	switch attrs.GetSubresource() {
	case "":
		switch attrs.GetVerb() {
		case "create", "update", "patch":
			return allow() // NodeRestriction checks that it is the node's own
		case "delete": // when it leaves; upstream's nodes may not
			if attrs.GetName() == node {
				return allow()
			}
			return refuse("node '%s' cannot delete '%s', only its own Node object", node, attrs.GetName())
		case "get", "list", "watch":
			switch attrs.GetName() {
			case node:
				return allow() // lists select by metadata.name
			case "":
				return refuse("node '%s' cannot read all nodes, only its own Node object", node)
			}
			return refuse("node '%s' cannot read '%s', only its own Node object", node, attrs.GetName())
		}
	case "status":
		switch attrs.GetVerb() {
		case "update", "patch":
			return allow()
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (a *Authorizer) pods(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	switch attrs.GetSubresource() {
	case "":
		return a.podItself(ctx, node, attrs)
	case "status":
		switch attrs.GetVerb() {
		case "update", "patch":
			return allow() // NodeRestriction checks whose it is
		}
	case "eviction":
		if attrs.GetVerb() == "create" {
			return allow()
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (a *Authorizer) podItself(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	switch attrs.GetVerb() {
	case "create", "delete":
		return allow() // mirror pods; NodeRestriction checks
	case "get":
		return a.ownPod(ctx, node, attrs)
	case "list", "watch":
		if attrs.GetName() != "" {
			return a.ownPod(ctx, node, attrs)
		}
		return selecting(node, attrs, "list/watch pods with spec.nodeName field selector")
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (a *Authorizer) ownPod(ctx context.Context, node string, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	key := types.NamespacedName{Namespace: attrs.GetNamespace(), Name: attrs.GetName()}
	if a.index.runs(node, key) {
		return allow()
	}
	pods, err := a.objects.PodsOn(ctx, node)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("pods of node %s: %w", node, err)
	}
	for i := range pods {
		if pods[i].Namespace == key.Namespace && pods[i].Name == key.Name {
			return allow()
		}
	}
	return refuse("no relationship found between node '%s' and this object", node)
}
