package nodeauthorizer

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
)

// kind is a kind of object that a node may read because one of its pods needs it.
type kind string

const (
	secret              = kind(pods.ReferenceSecret)
	configMap           = kind(pods.ReferenceConfigMap)
	claim               = kind(pods.ReferenceClaim)
	serviceAccount kind = "serviceaccount"
	resourceClaim  kind = "resourceclaim"
)

// ref is an object that a pod refers to; it lives in the pod's namespace.
type ref struct {
	kind kind
	name string
}

// object is a ref with its namespace.
type object struct {
	namespace string
	ref
}

// Index knows, for each node, the objects that its pods refer to, but keeps no pods. A follower of
// pods writes it.
type Index struct {
	mu    sync.RWMutex
	pods  map[types.NamespacedName]podRefs
	uses  map[string]map[object]int // node → object → number of pods
	bound map[string]map[types.NamespacedName]bool
}

type podRefs struct {
	node string
	refs []ref
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		pods:  map[types.NamespacedName]podRefs{},
		uses:  map[string]map[object]int{},
		bound: map[string]map[types.NamespacedName]bool{},
	}
}

// SetPod records a pod. Once the pod is bound, its references change only by ephemeral containers
// and by claims that are created for it.
func (x *Index) SetPod(p *corev1.Pod) {
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	x.mu.Lock()
	defer x.mu.Unlock()
	if old, ok := x.pods[key]; ok {
		if old.node == p.Spec.NodeName && len(p.Spec.EphemeralContainers) == 0 && len(p.Status.ResourceClaimStatuses) == 0 &&
			p.Status.ExtendedResourceClaimStatus == nil {
			return
		}
		x.removeLocked(key)
	}
	if p.Spec.NodeName == "" {
		return
	}
	entry := podRefs{node: p.Spec.NodeName, refs: refsOf(p)}
	x.pods[key] = entry
	if x.uses[entry.node] == nil {
		x.uses[entry.node] = map[object]int{}
		x.bound[entry.node] = map[types.NamespacedName]bool{}
	}
	x.bound[entry.node][key] = true
	for _, r := range entry.refs {
		x.uses[entry.node][object{p.Namespace, r}]++
	}
}

// DeletePod forgets a pod.
func (x *Index) DeletePod(key types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(key)
}

func (x *Index) removeLocked(key types.NamespacedName) {
	entry, ok := x.pods[key]
	if !ok {
		return
	}
	delete(x.pods, key)
	delete(x.bound[entry.node], key)
	for _, r := range entry.refs {
		o := object{key.Namespace, r}
		if x.uses[entry.node][o]--; x.uses[entry.node][o] == 0 {
			delete(x.uses[entry.node], o)
		}
	}
	if len(x.bound[entry.node]) == 0 {
		delete(x.uses, entry.node)
		delete(x.bound, entry.node)
	}
}

func (x *Index) refers(node string, o object) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.uses[node][o] > 0
}

func (x *Index) runs(node string, pod types.NamespacedName) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.bound[node][pod]
}

// refsOf lists what a pod refers to, without duplicates.
func refsOf(p *corev1.Pod) []ref {
	set := map[ref]bool{}
	add := func(k kind, name string) {
		if name != "" {
			set[ref{k, name}] = true
		}
	}
	if pods.IsMirror(p) {
		return nil // written by its node
	}
	add(serviceAccount, p.Spec.ServiceAccountName)
	pods.References(p, func(r pods.Reference, name string) { add(kind(r), name) })
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			add(resourceClaim, *s.ResourceClaimName)
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			add(resourceClaim, *c.ResourceClaimName)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		add(resourceClaim, s.ResourceClaimName)
	}
	refs := make([]ref, 0, len(set))
	for r := range set {
		refs = append(refs, r)
	}
	return refs
}
