package volumes

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// heeds reports whether a plugin that rejected the pod has it tried again after an event.
func heeds(t *testing.T, pl fwk.EnqueueExtensions, p *v1.Pod, event fwk.ClusterEvent, oldObj, newObj any) bool {
	t.Helper()
	all, err := pl.EventsToRegister(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(h fwk.ClusterEventWithHint) bool {
		same := h.Event.Resource == event.Resource || h.Event.Resource == fwk.Pod && event.Resource == fwk.AssignedPod
		if !same || h.Event.ActionType&event.ActionType == 0 {
			return false
		}
		if h.QueueingHintFn == nil {
			return true
		}
		hint, err := h.QueueingHintFn(klog.Background(), p, oldObj, newObj)
		if err != nil {
			t.Errorf("%s %s: %v", event.Resource, event.ActionType, err)
		}
		return hint == fwk.Queue
	})
}

func TestWhatPodsAreWokenBy(t *testing.T) {
	w := newWorld(t, local, claim("c"), claim("b", has("v")), claim("other", ofClass("x")), claim("d"))
	binding := w.binding(configv1.VolumeBindingArgs{})
	build := func(f func(fwk.Handle) (fwk.Plugin, error)) fwk.EnqueueExtensions {
		pl, err := f(w)
		if err != nil {
			t.Fatal(err)
		}
		e, ok := pl.(fwk.EnqueueExtensions)
		if !ok {
			t.Fatalf("%s registers nothing", pl.Name())
		}
		return e
	}
	restrictions, limits, zone := build(NewRestrictions), build(NewLimits), build(NewZone)
	of := func(r fwk.EventResource, a fwk.ActionType) fwk.ClusterEvent {
		return fwk.ClusterEvent{Resource: r, ActionType: a}
	}
	p := pod("p", using("b", "c"))
	elsewhere := func(p *v1.Pod) { p.Namespace = "other" }
	moved := csiNode(nil)
	metav1.SetMetaDataAnnotation(&moved.ObjectMeta, v1.MigratedPluginsAnnotationKey, "kubernetes.io/gce-pd")
	counts := driver(func(s *storagev1.CSIDriverSpec) { s.StorageCapacity = new(true) })
	prevents := driver(func(s *storagev1.CSIDriverSpec) { s.PreventPodSchedulingIfMissing = new(true) })
	otherClass := func(p *v1.PersistentVolume) { p.Spec.StorageClassName = "x" }
	foreign := claim("c")
	foreign.Namespace = "other"
	for name, tc := range map[string]struct {
		pl       fwk.EnqueueExtensions
		pod      *v1.Pod
		event    fwk.ClusterEvent
		old, obj any
		want     bool
	}{
		"binding: a new node":       {binding, p, of(fwk.Node, fwk.Add), nil, node("n"), true},
		"binding: labels of a node": {binding, p, of(fwk.Node, fwk.UpdateNodeLabel), node("n"), node("n"), true},
		"binding: a node's taints":  {binding, p, of(fwk.Node, fwk.UpdateNodeTaint), node("n"), node("n"), false},
		"binding: a new class":      {binding, p, of(fwk.StorageClass, fwk.Add), nil, local, true},
		"binding: other topologies": {binding, p, of(fwk.StorageClass, fwk.Update), local,
			class("local", "p", later, zonesAllowed("z")), true},
		"binding: the same topologies": {binding, p, of(fwk.StorageClass, fwk.Update), local, local, false},
		"binding: its claim": {binding, p, of(fwk.PersistentVolumeClaim, fwk.Update), claim("c"),
			claim("c"), true},
		"binding: the claim made for it": {binding, pod("p", generic), of(fwk.PersistentVolumeClaim, fwk.Add), nil,
			claim("p-a"), true},
		"binding: another claim":         {binding, p, of(fwk.PersistentVolumeClaim, fwk.Add), nil, claim("e"), false},
		"binding: another namespace's":   {binding, p, of(fwk.PersistentVolumeClaim, fwk.Add), nil, foreign, false},
		"binding: a volume of the class": {binding, p, of(fwk.PersistentVolume, fwk.Add), nil, pv("w"), true},
		"binding: of another class": {binding, p, of(fwk.PersistentVolume, fwk.Add), nil, pv("w", otherClass),
			false},
		"binding: the volume it has": {binding, p, of(fwk.PersistentVolume, fwk.Update), pv("v"),
			pv("v", otherClass), true},
		"binding: one kept for it": {binding, p, of(fwk.PersistentVolume, fwk.Update), pv("w"),
			pv("w", otherClass, kept("c", "")), true},
		"binding: a new CSINode":      {binding, p, of(fwk.CSINode, fwk.Add), nil, moved, true},
		"binding: CSI has taken over": {binding, p, of(fwk.CSINode, fwk.Update), csiNode(nil), moved, true},
		"binding: a new driver": {binding, p, of(fwk.CSINode, fwk.Update), csiNode(nil),
			csiNode(map[string]int32{"d": 1}), false},
		"binding: room does not count":  {binding, p, of(fwk.CSIDriver, fwk.Update), counts, driver(nil), true},
		"binding: nor does it any more": {binding, p, of(fwk.CSIDriver, fwk.Delete), counts, nil, true},
		"binding: room counts":          {binding, p, of(fwk.CSIDriver, fwk.Update), driver(nil), counts, false},
		"binding: new room": {binding, p, of(fwk.CSIStorageCapacity, fwk.Add), nil,
			room("r", "local", "z", "1Gi"), true},
		"binding: room of another class": {binding, p, of(fwk.CSIStorageCapacity, fwk.Add), nil,
			room("r", "x", "z", "1Gi"), false},
		"binding: more room": {binding, p, of(fwk.CSIStorageCapacity, fwk.Update),
			room("r", "local", "z", "1Gi"), room("r", "local", "z", "2Gi"), true},
		"binding: less room": {binding, p, of(fwk.CSIStorageCapacity, fwk.Update),
			room("r", "local", "z", "2Gi"), room("r", "local", "z", "1Gi"), false},
		"binding: a volume given back": {binding, p, of(fwk.AssignedPod, fwk.Delete),
			pod("o", on("n1"), using("d")), nil, true},
		"binding: of another class, too": {binding, p, of(fwk.AssignedPod, fwk.Delete),
			pod("o", on("n1"), using("other")), nil, false},
		"binding: the end of another pod": {binding, p, of(fwk.AssignedPod, fwk.Delete),
			pod("o", on("n1"), using("b")), nil, false},
		"restrictions: a new node": {restrictions, p, of(fwk.Node, fwk.Add), nil, node("n"), true},
		"restrictions: its claim": {restrictions, p, of(fwk.PersistentVolumeClaim, fwk.Add), nil, claim("c"),
			true},
		"restrictions: the claim's user": {restrictions, p, of(fwk.AssignedPod, fwk.Delete), pod("o", using("c")),
			nil, true},
		"restrictions: the disk's": {restrictions, pod("p", with(ebs("x"))), of(fwk.AssignedPod, fwk.Delete),
			pod("o", elsewhere, with(ebs("x"))), nil, true},
		"restrictions: another's": {restrictions, p, of(fwk.AssignedPod, fwk.Delete), pod("o", using("d")),
			nil, false},
		"restrictions: another namespace's": {restrictions, p, of(fwk.AssignedPod, fwk.Delete),
			pod("o", elsewhere, using("c")), nil, false},
		"limits: a new CSINode": {limits, p, of(fwk.CSINode, fwk.Add), nil, csiNode(nil), true},
		"limits: a higher limit": {limits, p, of(fwk.CSINode, fwk.Update),
			csiNode(map[string]int32{"d": 1}), csiNode(map[string]int32{"d": 2}), true},
		"limits: a lower limit": {limits, p, of(fwk.CSINode, fwk.Update),
			csiNode(map[string]int32{"d": 2}), csiNode(map[string]int32{"d": 1}), false},
		"limits: no limit any more": {limits, p, of(fwk.CSINode, fwk.Update),
			csiNode(map[string]int32{"d": 2}), csiNode(map[string]int32{"d": -1}), true},
		"limits: a new driver": {limits, p, of(fwk.CSINode, fwk.Update), csiNode(nil),
			csiNode(map[string]int32{"d": -1}), true},
		"limits: the driver may be absent": {limits, p, of(fwk.CSIDriver, fwk.Update), prevents, driver(nil), true},
		"limits: it must be there":         {limits, p, of(fwk.CSIDriver, fwk.Update), driver(nil), prevents, false},
		"limits: a pod with volumes": {limits, p, of(fwk.AssignedPod, fwk.Delete),
			pod("o", on("n1"), using("d")), nil, true},
		"limits: one that had no node": {limits, p, of(fwk.AssignedPod, fwk.Delete), pod("o", using("d")), nil,
			false},
		"limits: a pod without volumes": {limits, p, of(fwk.AssignedPod, fwk.Delete), pod("o", on("n1")), nil, false},
		"limits: its claim":             {limits, p, of(fwk.PersistentVolumeClaim, fwk.Add), nil, claim("c"), true},
		"limits: a volume is detached": {limits, p, of(fwk.VolumeAttachment, fwk.Delete),
			&storagev1.VolumeAttachment{}, nil, true},
		"limits: that is of no interest": {limits, pod("p"), of(fwk.VolumeAttachment, fwk.Delete),
			&storagev1.VolumeAttachment{}, nil, false},
		"zone: a new node": {zone, p, of(fwk.Node, fwk.Add), nil, node("n"), true},
		"zone: its claim": {zone, p, of(fwk.PersistentVolumeClaim, fwk.Update), claim("b"),
			claim("b"), true},
		"zone: a class for later": {zone, p, of(fwk.StorageClass, fwk.Add), nil, local, true},
		"zone: a class for now": {zone, p, of(fwk.StorageClass, fwk.Add), nil,
			class("x", "d", storagev1.VolumeBindingImmediate), false},
		"zone: a new volume": {zone, p, of(fwk.PersistentVolume, fwk.Add), nil, pv("v"), true},
		"zone: another zone": {zone, p, of(fwk.PersistentVolume, fwk.Update), pv("v"),
			pv("v", zonedAt(v1.LabelTopologyZone, "z")), true},
		"zone: the same zone": {zone, p, of(fwk.PersistentVolume, fwk.Update), pv("v"),
			pv("v", sized("2Gi")), false},
	} {
		if got := heeds(t, tc.pl, tc.pod, tc.event, tc.old, tc.obj); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
