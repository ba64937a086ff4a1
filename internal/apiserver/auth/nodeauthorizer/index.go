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
	secret         kind = "secret"
	configMap      kind = "configmap"
	claim          kind = "persistentvolumeclaim"
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
	for _, s := range p.Spec.ImagePullSecrets {
		add(secret, s.Name)
	}
	for c := range pods.AllContainers(&p.Spec) {
		containerRefs(c, add)
	}
	for i := range p.Spec.Volumes {
		volumeRefs(p, &p.Spec.Volumes[i], add)
	}
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

func containerRefs(c *corev1.Container, add func(kind, string)) {
	for _, f := range c.EnvFrom {
		if f.SecretRef != nil {
			add(secret, f.SecretRef.Name)
		}
		if f.ConfigMapRef != nil {
			add(configMap, f.ConfigMapRef.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add(secret, r.Name)
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add(configMap, r.Name)
		}
	}
}

func volumeRefs(p *corev1.Pod, v *corev1.Volume, add func(kind, string)) {
	switch {
	case v.Secret != nil:
		add(secret, v.Secret.SecretName)
	case v.ConfigMap != nil:
		add(configMap, v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		add(claim, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		add(claim, p.Name+"-"+v.Name)
	case v.Projected != nil:
		for _, src := range v.Projected.Sources {
			if src.Secret != nil {
				add(secret, src.Secret.Name)
			}
			if src.ConfigMap != nil {
				add(configMap, src.ConfigMap.Name)
			}
		}
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		add(secret, v.CSI.NodePublishSecretRef.Name)
	case v.CephFS != nil && v.CephFS.SecretRef != nil:
		add(secret, v.CephFS.SecretRef.Name)
	case v.RBD != nil && v.RBD.SecretRef != nil:
		add(secret, v.RBD.SecretRef.Name)
	case v.ISCSI != nil && v.ISCSI.SecretRef != nil:
		add(secret, v.ISCSI.SecretRef.Name)
	case v.FlexVolume != nil && v.FlexVolume.SecretRef != nil:
		add(secret, v.FlexVolume.SecretRef.Name)
	case v.Cinder != nil && v.Cinder.SecretRef != nil:
		add(secret, v.Cinder.SecretRef.Name)
	case v.ScaleIO != nil && v.ScaleIO.SecretRef != nil:
		add(secret, v.ScaleIO.SecretRef.Name)
	case v.StorageOS != nil && v.StorageOS.SecretRef != nil:
		add(secret, v.StorageOS.SecretRef.Name)
	case v.AzureFile != nil:
		add(secret, v.AzureFile.SecretName)
	}
}
