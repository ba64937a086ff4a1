package defaults

import (
	corev1 "k8s.io/api/core/v1"
)

// tokenSeconds is how long a projected service account token lives.
const tokenSeconds = 3600

func volume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.HostPath != nil:
		setPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Secret != nil:
		setPtr(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.ConfigMap != nil:
		setPtr(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.DownwardAPI != nil:
		setPtr(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		projected(v.Projected)
	case v.Image != nil:
		set(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			claimSpec(&t.Spec)
		}
	case v.ISCSI != nil:
		set(&v.ISCSI.ISCSIInterface, "default")
	}
	legacyVolume(v)
}

func downward(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		fieldRef(items[i].FieldRef)
	}
}

func projected(p *corev1.ProjectedVolumeSource) {
	setPtr(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		src := &p.Sources[i]
		if src.DownwardAPI != nil {
			downward(src.DownwardAPI.Items)
		}
		if src.ServiceAccountToken != nil {
			setPtr(&src.ServiceAccountToken.ExpirationSeconds, int64(tokenSeconds))
		}
	}
}

// legacyVolume fills in sources that nodes no longer mount by themselves, but that the API still
// has.
func legacyVolume(v *corev1.Volume) {
	if r := v.RBD; r != nil {
		set(&r.RBDPool, "rbd")
		set(&r.RadosUser, "admin")
		set(&r.Keyring, "/etc/ceph/keyring")
	}
	if a := v.AzureDisk; a != nil {
		setPtr(&a.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		setPtr(&a.FSType, "ext4")
		setPtr(&a.ReadOnly, false)
		setPtr(&a.Kind, corev1.AzureSharedBlobDisk)
	}
	if s := v.ScaleIO; s != nil {
		set(&s.StorageMode, "ThinProvisioned")
		set(&s.FSType, "xfs")
	}
}
