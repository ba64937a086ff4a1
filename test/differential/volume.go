package main

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

const (
	// Classes: volumes that are there, on nodes; volumes that are made where the pod is; volumes that were to be there
	// long ago.
	classLocal, classThere, classAtOnce = "local", "there", "at-once"
	driver                              = "disks.example.com"
	// What takes the place of the built-in volumes of AWS.
	driverEBS, pluginEBS = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"
	claims               = "claim-0 claim-1 claim-2 claim-3 claim-4 solo"
)

// claimOf returns the name of a namespace's claim. It says the namespace, because upstream takes a victim of another
// namespace, with a claim of the same name, for one that frees a ReadWriteOncePod claim.
func claimOf(ns, claim string) string { return ns + "-" + claim }

// solo returns the claim of a namespace that one pod only may use.
func solo(ns string) string { return claimOf(ns, "solo") }

// storage returns what a cluster has of volumes, with claims in all namespaces.
func (d dice) storage(nodes int) []object {
	out := []object{
		class(classLocal, "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer),
		class(classAtOnce, driver, storagev1.VolumeBindingImmediate),
		&storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec:       storagev1.CSIDriverSpec{StorageCapacity: new(d.chance(2)), AttachRequired: new(d.chance(2))},
		},
	}
	there := class(classThere, driver, storagev1.VolumeBindingWaitForFirstConsumer)
	if d.chance(2) {
		there.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: v1.LabelTopologyZone, Values: []string{"a", d.word("b c")}},
		}}}
	}
	out = append(out, there)
	for _, zone := range some(d, 2, strings.Fields(zones)...) {
		out = append(out, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: "in-" + zone, Namespace: "ns-0"}, StorageClassName: classThere,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelTopologyZone: zone}},
			Capacity:     resource.NewQuantity(int64(1+d.IntN(20))<<30, resource.BinarySI),
		})
	}
	for i := range nodes {
		if !d.chance(3) {
			out = append(out, d.csiNode(fmt.Sprint("n-", i)))
		}
	}
	for i := range d.IntN(6) {
		v := d.volume(fmt.Sprint("free-", i), classLocal, nodes)
		v.Status.Phase = v1.VolumeAvailable
		out = append(out, v)
	}
	for ns := range strings.FieldsSeq(namespaces) {
		for name := range strings.FieldsSeq(claims) {
			if !d.chance(10) {
				out = append(out, d.claim(ns, claimOf(ns, name), nodes)...)
			}
		}
	}
	return out
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode,
	}
}

func size(s string) v1.VolumeResourceRequirements {
	return v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)}}
}

func (d dice) csiNode(name string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if !d.chance(4) {
		n.Spec.Drivers = []storagev1.CSINodeDriver{{
			Name: driver, NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1 + d.IntN(3)))},
		}}
	}
	if d.chance(2) {
		n.Annotations = map[string]string{v1.MigratedPluginsAnnotationKey: pluginEBS}
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{
			Name: driverEBS, NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1 + d.IntN(2)))},
		})
	}
	return n
}

// claim returns a claim that is bound, with its volume, or one that is not.
func (d dice) claim(ns, name string, nodes int) []object {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: new(one(d, classLocal, classThere, classThere, classAtOnce)),
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:        size(d.word("1Gi 5Gi 10Gi")),
		},
	}
	if name == solo(ns) {
		c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	}
	if d.chance(2) {
		return []object{c}
	}
	v := d.volume(name, *c.Spec.StorageClassName, nodes)
	v.Spec.AccessModes = c.Spec.AccessModes
	v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: ns, Name: name}
	v.Status.Phase = v1.VolumeBound
	c.Spec.VolumeName = v.Name
	c.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
	c.Status.Phase = one(d, v1.ClaimBound, v1.ClaimBound, v1.ClaimBound, v1.ClaimBound, v1.ClaimLost)
	if d.chance(12) {
		return []object{c} // its volume is gone
	}
	return []object{c, v}
}

// volume returns a volume that some nodes can reach.
func (d dice) volume(name, class string, nodes int) *v1.PersistentVolume {
	v := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(d.word("1Gi 5Gi 8Gi 20Gi"))},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	}
	if class == classThere && d.chance(3) {
		v.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{
			AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: name},
		}
	}
	key, values := v1.LabelHostname, []string{fmt.Sprint("n-", d.IntN(nodes)), fmt.Sprint("n-", d.IntN(nodes))}
	if d.chance(2) {
		key, values = v1.LabelTopologyZone, []string{d.word(zones), d.word(zones)}
	}
	if class == classLocal || d.chance(2) {
		v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: values}},
		}}}}
	}
	if d.chance(3) {
		v.Labels = map[string]string{v1.LabelTopologyZone: d.word(zones) + "__" + d.word(zones)}
	}
	return v
}

// volumes gives a pod volumes.
func (d dice) volumes(p *v1.Pod) {
	for _, claim := range some(d, 4, strings.Fields(claims)...) {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claimOf(p.Namespace, claim)},
		}})
	}
	if d.chance(10) {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "image", VolumeSource: v1.VolumeSource{
			Image: &v1.ImageVolumeSource{Reference: "registry.example/data:2"},
		}})
	}
	if d.chance(10) {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "disk", VolumeSource: d.disk()})
	}
	if d.chance(15) { // of which nobody makes the claim
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{
			Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
				Spec: v1.PersistentVolumeClaimSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: size("1Gi"),
				},
			}},
		}})
	}
}

// disk returns a volume that not every other pod on the node may have, too.
func (d dice) disk() v1.VolumeSource {
	readOnly := d.chance(2)
	switch d.IntN(5) {
	case 3:
		return v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{
			VolumeID: d.word("vol-1 vol-2"), ReadOnly: readOnly,
		}}
	case 4: // which counts for no limit
		return v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}}
	case 0:
		return v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk", ReadOnly: readOnly}}
	case 1:
		return v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{
			TargetPortal: "10.0.0.1", IQN: "iqn.2026-11.example:disk", ReadOnly: readOnly,
		}}
	}
	return v1.VolumeSource{RBD: &v1.RBDVolumeSource{
		CephMonitors: []string{"10.0.0.1", "10.0.0.2"}, RBDPool: "rbd", RBDImage: "disk", ReadOnly: readOnly,
	}}
}
