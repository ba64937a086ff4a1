package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// Zone is VolumeZone: it keeps a pod in the zones and regions with which its volumes are labelled.
type Zone struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

var (
	_ fwk.PreFilterPlugin   = (*Zone)(nil)
	_ fwk.FilterPlugin      = (*Zone)(nil)
	_ fwk.EnqueueExtensions = (*Zone)(nil)
)

// NewZone returns the plugin.
func NewZone(h fwk.Handle) (fwk.Plugin, error) {
	f := h.SharedInformerFactory()
	return &Zone{
		claims: f.Core().V1().PersistentVolumeClaims().Lister(), volumes: f.Core().V1().PersistentVolumes().Lister(),
		classes: f.Storage().V1().StorageClasses().Lister(),
	}, nil
}

// zoneLabels are the labels of zones and regions, each with its present name.
var zoneLabels = []struct{ key, now string }{
	{v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone},
	{v1.LabelFailureDomainBetaRegion, v1.LabelTopologyRegion},
	{v1.LabelTopologyZone, v1.LabelTopologyZone},
	{v1.LabelTopologyRegion, v1.LabelTopologyRegion},
}

// zoned is a label of a volume: a node must have one of the values, under this key or under its present name.
type zoned struct {
	key, now string
	values   []string
}

const zoneKey fwk.StateKey = "VolumeZone"

type zoneState []zoned

// Clone returns the state itself, because it does not change.
func (s zoneState) Clone() fwk.StateData { return s }

// Name returns upstream's name.
func (*Zone) Name() string { return "VolumeZone" }

// PreFilter reads the labels of the pod's volumes, and skips pods that have none.
func (z *Zone) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod,
	_ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	var all zoneState
	for _, u := range uses(pod) {
		if u.ephemeral {
			continue
		}
		here, st := z.of(pod.Namespace, u.name)
		if !st.IsSuccess() {
			return nil, st
		}
		all = append(all, here...)
	}
	if len(all) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(zoneKey, all)
	return nil, nil
}

// of returns the labels of the claim's volume. There are none yet if the volume comes with the pod's node.
func (z *Zone) of(namespace, name string) ([]zoned, *fwk.Status) {
	if name == "" {
		return nil, never("PersistentVolumeClaim had no name")
	}
	claim, err := z.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, missing(err)
	}
	if claim.Spec.VolumeName == "" {
		return nil, z.later(claim)
	}
	pv, err := z.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return nil, missing(err)
	}
	return zones(pv), nil
}

// later returns whether a claim without a volume gets it later.
func (z *Zone) later(claim *v1.PersistentVolumeClaim) *fwk.Status {
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return never("PersistentVolumeClaim had no pv name and storageClass name")
	}
	class, err := z.classes.Get(name)
	switch {
	case err != nil:
		return missing(err)
	case class.VolumeBindingMode == nil:
		return never(fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", name))
	case *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return never("PersistentVolume had no name")
	}
	return nil
}

func never(why string) *fwk.Status { return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why) }

// missing rejects a pod because something does not exist.
func missing(err error) *fwk.Status {
	if apierrors.IsNotFound(err) {
		return never(err.Error())
	}
	return fwk.AsStatus(err)
}

// zones returns what a volume's labels ask of nodes. Several zones are joined by two underscores; a label that lacks
// one does not count.
func zones(pv *v1.PersistentVolume) []zoned {
	var out []zoned
	for _, l := range zoneLabels {
		value, ok := pv.Labels[l.key]
		if !ok {
			continue
		}
		values := strings.Split(value, "__")
		for i := range values {
			values[i] = strings.TrimSpace(values[i])
		}
		if !slices.Contains(values, "") {
			out = append(out, zoned{l.key, l.now, values})
		}
	}
	return out
}

// PreFilterExtensions returns nil: other pods do not matter.
func (*Zone) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter compares the labels with the node's.
func (*Zone) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[zoneState](state, zoneKey)
	if !st.IsSuccess() {
		return st
	}
	if !inZones(n.Node().Labels, s) {
		return never("node(s) had no available volume zone")
	}
	return nil
}

// inZones reports whether a node with these labels meets all that is asked. One that has no labels of this sort does:
// its cluster has no zones.
func inZones(node map[string]string, asked []zoned) bool {
	labelled := false
	for _, l := range zoneLabels {
		_, ok := node[l.key]
		labelled = labelled || ok
	}
	if !labelled {
		return true
	}
	return !slices.ContainsFunc(asked, func(z zoned) bool {
		value, ok := node[z.key]
		if !ok {
			value, ok = node[z.now]
		}
		return !ok || !slices.Contains(z.values, value)
	})
}

// EventsToRegister returns the events after which a volume's zone may be another.
func (*Zone) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		framework.Event(fwk.StorageClass, fwk.Add, laterHint),
		framework.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel, nil),
		framework.Event(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update, claimHint),
		framework.Event(fwk.PersistentVolume, fwk.Add|fwk.Update, zoneHint),
	}, nil
}

// laterHint is about a new class whose volumes come with the pod's node.
func laterHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	_, class, err := framework.EventObjects[*storagev1.StorageClass](oldObj, newObj)
	if err != nil || class == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer)
}

// zoneHint is about a volume that is new or has other labels.
func zoneHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, pv, err := framework.EventObjects[*v1.PersistentVolume](oldObj, newObj)
	if err != nil || pv == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(old == nil || !equality.Semantic.DeepEqual(zones(old), zones(pv)))
}
