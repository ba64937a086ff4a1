package pods

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// IsActive reports whether a pod counts as a replica: it has not ended, and is not being deleted.
func IsActive(p *v1.Pod) bool { return !IsTerminal(p.Status.Phase) && p.DeletionTimestamp == nil }

// IsTerminating reports whether a pod is being deleted, and has not ended yet.
func IsTerminating(p *v1.Pod) bool {
	return !IsTerminal(p.Status.Phase) && p.DeletionTimestamp != nil
}

// ReadySince returns whether a pod is ready, and since when.
func ReadySince(p *v1.Pod) (time.Time, bool) {
	c := FindCondition(&p.Status, v1.PodReady)
	if c == nil || c.Status != v1.ConditionTrue {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// AvailableIn returns after how long a pod that is ready counts as available: 0 if it does already.
// It never does if it is not ready, or does not tell since when and minReady, in seconds, is not 0.
func AvailableIn(p *v1.Pod, minReady int32, now time.Time) (wait time.Duration, ever bool) {
	since, ready := ReadySince(p)
	switch {
	case !ready:
		return 0, false
	case minReady == 0:
		return 0, true
	case since.IsZero():
		return 0, false
	}
	return max(0, since.Add(time.Duration(minReady)*time.Second).Sub(now)), true
}

// IsAvailable reports whether a pod has been ready for minReady seconds.
func IsAvailable(p *v1.Pod, minReady int32, now time.Time) bool {
	wait, ever := AvailableIn(p, minReady, now)
	return ever && wait == 0
}

// FromTemplate returns a new pod that the owner, an object of the kind, controls. Its name is
// generated from the owner's.
func FromTemplate(template *v1.PodTemplateSpec, owner metav1.Object, kind schema.GroupVersionKind) *v1.Pod {
	t := template.DeepCopy()
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), GenerateName: owner.GetName() + "-",
			Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Spec: t.Spec,
	}
}

// TemplateHash returns the hash of a template, the same one as upstream's. collisions makes it another
// one after the name that it gives was taken.
func TemplateHash(t *v1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(*t))
	if collisions != nil {
		var count [8]byte // upstream writes eight bytes, of which the last four stay zero
		binary.LittleEndian.PutUint32(count[:], uint32(*collisions))
		h.Write(count[:])
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}
