package objectcache

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"wherry.dev/internal/api/pods"
)

// Refs lists the objects that a pod refers to: by volumes (claims included), environment and pull secrets.
func Refs(pod *v1.Pod) []Ref {
	r := &refs{namespace: pod.Namespace, seen: map[Ref]bool{}}
	for _, s := range pod.Spec.ImagePullSecrets {
		r.add(Secret, s.Name)
	}
	for i := range pod.Spec.Volumes {
		r.volume(&pod.Spec.Volumes[i])
		if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil {
			r.add(Claim, ephemeral.VolumeClaimName(pod, v))
		}
	}
	for c := range pods.AllContainers(&pod.Spec) {
		r.env(c.EnvFrom, c.Env)
	}
	return r.list
}

type refs struct {
	namespace string
	seen      map[Ref]bool
	list      []Ref
}

func (r *refs) add(kind Kind, name string) {
	ref := Ref{kind, r.namespace, name}
	if name != "" && !r.seen[ref] {
		r.seen[ref] = true
		r.list = append(r.list, ref)
	}
}

func (r *refs) volume(v *v1.Volume) {
	switch {
	case v.ConfigMap != nil:
		r.add(ConfigMap, v.ConfigMap.Name)
	case v.Secret != nil:
		r.add(Secret, v.Secret.SecretName)
	case v.PersistentVolumeClaim != nil:
		r.add(Claim, v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			src := &v.Projected.Sources[i]
			if src.ConfigMap != nil {
				r.add(ConfigMap, src.ConfigMap.Name)
			}
			if src.Secret != nil {
				r.add(Secret, src.Secret.Name)
			}
			if ref := (Ref{Kind: TrustBundles}); src.ClusterTrustBundle != nil && !r.seen[ref] {
				r.seen[ref] = true
				r.list = append(r.list, ref)
			}
		}
	}
}

func (r *refs) env(from []v1.EnvFromSource, env []v1.EnvVar) {
	for i := range from {
		if from[i].ConfigMapRef != nil {
			r.add(ConfigMap, from[i].ConfigMapRef.Name)
		}
		if from[i].SecretRef != nil {
			r.add(Secret, from[i].SecretRef.Name)
		}
	}
	for i := range env {
		if src := env[i].ValueFrom; src != nil {
			if src.ConfigMapKeyRef != nil {
				r.add(ConfigMap, src.ConfigMapKeyRef.Name)
			}
			if src.SecretKeyRef != nil {
				r.add(Secret, src.SecretKeyRef.Name)
			}
		}
	}
}
