package pods

import v1 "k8s.io/api/core/v1"

// Reference is the kind of an object in its own namespace that a pod refers to.
type Reference string

// The kinds that pods refer to by the name alone.
const (
	ReferenceSecret    Reference = "secret"
	ReferenceConfigMap Reference = "configmap"
	ReferenceClaim     Reference = "persistentvolumeclaim"
)

// References calls add with what a pod refers to in its namespace: for its images, its containers and
// its volumes. A name may come more than once, or be "".
func References(p *v1.Pod, add func(Reference, string)) {
	for _, s := range p.Spec.ImagePullSecrets {
		add(ReferenceSecret, s.Name)
	}
	for c := range AllContainers(&p.Spec) {
		containerRefs(c, add)
	}
	for i := range p.Spec.Volumes {
		volumeRefs(p, &p.Spec.Volumes[i], add)
	}
}

func containerRefs(c *v1.Container, add func(Reference, string)) {
	for _, f := range c.EnvFrom {
		if f.SecretRef != nil {
			add(ReferenceSecret, f.SecretRef.Name)
		}
		if f.ConfigMapRef != nil {
			add(ReferenceConfigMap, f.ConfigMapRef.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add(ReferenceSecret, r.Name)
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add(ReferenceConfigMap, r.Name)
		}
	}
}

func volumeRefs(p *v1.Pod, v *v1.Volume, add func(Reference, string)) {
	switch {
	case v.Secret != nil:
		add(ReferenceSecret, v.Secret.SecretName)
	case v.ConfigMap != nil:
		add(ReferenceConfigMap, v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		add(ReferenceClaim, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		add(ReferenceClaim, p.Name+"-"+v.Name)
	case v.Projected != nil:
		for _, src := range v.Projected.Sources {
			if src.Secret != nil {
				add(ReferenceSecret, src.Secret.Name)
			}
			if src.ConfigMap != nil {
				add(ReferenceConfigMap, src.ConfigMap.Name)
			}
		}
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		add(ReferenceSecret, v.CSI.NodePublishSecretRef.Name)
	case v.CephFS != nil && v.CephFS.SecretRef != nil:
		add(ReferenceSecret, v.CephFS.SecretRef.Name)
	case v.RBD != nil && v.RBD.SecretRef != nil:
		add(ReferenceSecret, v.RBD.SecretRef.Name)
	case v.ISCSI != nil && v.ISCSI.SecretRef != nil:
		add(ReferenceSecret, v.ISCSI.SecretRef.Name)
	case v.FlexVolume != nil && v.FlexVolume.SecretRef != nil:
		add(ReferenceSecret, v.FlexVolume.SecretRef.Name)
	case v.Cinder != nil && v.Cinder.SecretRef != nil:
		add(ReferenceSecret, v.Cinder.SecretRef.Name)
	case v.ScaleIO != nil && v.ScaleIO.SecretRef != nil:
		add(ReferenceSecret, v.ScaleIO.SecretRef.Name)
	case v.StorageOS != nil && v.StorageOS.SecretRef != nil:
		add(ReferenceSecret, v.StorageOS.SecretRef.Name)
	case v.AzureFile != nil:
		add(ReferenceSecret, v.AzureFile.SecretName)
	}
}
