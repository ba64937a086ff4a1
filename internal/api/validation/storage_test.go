package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVolumesStayWhatTheyAre(t *testing.T) {
	zone := func(key string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
		}}}}
	}
	volume := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"},
			},
		}}
		change(v)
		return v
	}
	affinity := func(a *corev1.VolumeNodeAffinity) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = a }
	}
	plain := func(*corev1.PersistentVolume) {}
	class := func(name string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = &name }
	}
	expand := func(name string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.CSI.ControllerExpandSecretRef = &corev1.SecretReference{Name: name, Namespace: "n"}
		}
	}
	for _, c := range []struct {
		name    string
		was, is func(*corev1.PersistentVolume)
		want    []string
	}{
		{"nothing", plain, plain, nil},
		{"nodes are given later", plain, affinity(zone(corev1.LabelTopologyZone)), nil},
		{"a label's successor", affinity(zone(corev1.LabelFailureDomainBetaZone)), affinity(zone(corev1.LabelTopologyZone)), nil},
		{"other nodes", affinity(zone(corev1.LabelTopologyZone)), affinity(zone(corev1.LabelTopologyRegion)),
			[]string{"nodeAffinity: Invalid value"}},
		{"a label's predecessor", affinity(zone(corev1.LabelTopologyZone)), affinity(zone(corev1.LabelFailureDomainBetaZone)),
			[]string{"nodeAffinity: Invalid value"}},
		{"no nodes any more", affinity(zone(corev1.LabelTopologyZone)), plain, []string{"nodeAffinity: Invalid value"}},
		{"a secret is given later", plain, expand("s"), nil},
		{"another secret", expand("s"), expand("t"), []string{"spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"}},
		{"another class of attributes", class("slow"), class("fast"), nil},
		{"no class of attributes any more", class("slow"), plain,
			[]string{"spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"}},
		{"an empty class of attributes", plain, class(""),
			[]string{"spec.volumeAttributesClassName: Required value: an empty string is disallowed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, PersistentVolumeUpdate(volume(c.is), volume(c.was)), c.want...)
		})
	}
}

func TestSourcesOfClaimsAgree(t *testing.T) {
	group := "snapshot.storage.k8s.io"
	for _, c := range []struct {
		name string
		d    *corev1.TypedLocalObjectReference
		ref  *corev1.TypedObjectReference
		want []string
	}{
		{"the same", &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"},
			&corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}, nil},
		{"another name", &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "s"},
			&corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "t"}, []string{"spec: Invalid value: \"spec.dataSource\": must match dataSourceRef"}},
		{"elsewhere", &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "s"},
			&corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "s", Namespace: new("other")},
			[]string{"spec: Invalid value: \"spec.dataSource\": may not be specified when dataSourceRef.namespace is specified"}},
		{"nowhere", nil, &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "s", Namespace: new("Other")},
			[]string{"spec.dataSourceRef.namespace: Invalid value"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				DataSource:  c.d, DataSourceRef: c.ref,
			}}
			check(t, PersistentVolumeClaim(claim), c.want...)
		})
	}
}

func TestStatusOfAClaimThatGrows(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}, Status: corev1.PersistentVolumeClaimStatus{
		AllocatedResources: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi"), "example.com/tapes": resource.MustParse("2")},
		AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
		},
	}}
	check(t, PersistentVolumeClaimStatus(claim, claim))
	claim.Status.AllocatedResources = corev1.ResourceList{"cpu": resource.MustParse("-1")}
	claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = "Growing"
	check(t, PersistentVolumeClaimStatus(claim, claim),
		`status.allocatedResources: Unsupported value: "cpu"`, "status.allocatedResources[cpu]: Invalid value",
		`status.allocatedResourceStatuses: Unsupported value: "Growing"`)
}

func TestISCSIVolumes(t *testing.T) {
	const iqn = "iqn.2001-04.com.example:storage.disk1"
	for _, c := range []struct {
		name   string
		change func(*corev1.ISCSIPersistentVolumeSource)
		want   []string
	}{
		{"as it should be", func(*corev1.ISCSIPersistentVolumeSource) {}, nil},
		{"eui", func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "eui.0123456789ABCDEF" }, nil},
		{"naa", func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "naa.0123456789ABCDEF0123456789ABCDEF" }, nil},
		{"nothing", func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN, s.TargetPortal = "", "" },
			[]string{"spec.iscsi.targetPortal: Required value", "spec.iscsi.iqn: Required value"}},
		{"no such form", func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "x" },
			[]string{`spec.iscsi.iqn: Invalid value: "x": must be valid format starting with iqn, eui, or naa`}},
		{"a form that is not kept", func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2001-04.com.example:a b" },
			[]string{`spec.iscsi.iqn: Invalid value: "iqn.2001-04.com.example:a b": must be valid format`}},
		{"an initiator", func(s *corev1.ISCSIPersistentVolumeSource) { s.InitiatorName = new("eui.1") },
			[]string{`spec.iscsi.initiatorname: Invalid value: "eui.1": must be valid format`}},
		{"an interface that is too long", func(s *corev1.ISCSIPersistentVolumeSource) {
			s.InitiatorName, s.TargetPortal = new(iqn), strings.Repeat("1", 63)
		}, []string{"spec.iscsi.targetportal: Invalid value"}},
		{"no such disk", func(s *corev1.ISCSIPersistentVolumeSource) { s.Lun = 256 },
			[]string{"spec.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive"}},
		{"no secret", func(s *corev1.ISCSIPersistentVolumeSource) { s.SessionCHAPAuth = true },
			[]string{"spec.iscsi.secretRef: Required value"}},
		{"a secret without a name", func(s *corev1.ISCSIPersistentVolumeSource) { s.SecretRef = &corev1.SecretReference{} },
			[]string{"spec.iscsi.secretRef.name: Required value"}},
	} {
		s := &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: iqn}
		c.change(s)
		t.Run(c.name, func(t *testing.T) {
			check(t, PersistentVolume(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: s},
			}}), c.want...)
		})
	}
}
