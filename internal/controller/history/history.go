// Package history keeps the revisions of a workload's pod template in ControllerRevisions: what a
// `kubectl rollout undo` goes back to. Revisions have the data, the names and the labels that
// upstream's have, so that a set can change hands between both.
//
// The newest revision is that of the template (PlanFor, a pure function). A Keeper carries that out.
package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	"wherry.dev/internal/api/defaults"
	"wherry.dev/internal/api/pods"
)

// Kind says how the owners of one kind name their revisions.
type Kind struct {
	schema.GroupVersionKind
	// Label of a revision has its hash.
	Label string
	// hash returns the hash of a template, or of the data that a revision of it has.
	hash func(t *v1.PodTemplateSpec, data []byte, collisions *int32) string
}

// StatefulSets hash the data of a revision, together with the number of collisions.
var StatefulSets = Kind{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	Label:            "controller.kubernetes.io/hash",
	hash: func(_ *v1.PodTemplateSpec, data []byte, collisions *int32) string {
		h := fnv.New32()
		h.Write(data)
		var n int32
		if collisions != nil {
			n = *collisions
		}
		h.Write([]byte(strconv.Itoa(int(n))))
		return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
	},
}

// DaemonSets hash the template, as Deployments do.
var DaemonSets = Kind{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	Label:            appsv1.DefaultDaemonSetUniqueLabelKey,
	hash: func(t *v1.PodTemplateSpec, _ []byte, collisions *int32) string {
		return pods.TemplateHash(t, collisions)
	},
}

// HashOf returns the hash of a revision.
func (k Kind) HashOf(rev *appsv1.ControllerRevision) string {
	if hash, ok := rev.Labels[k.Label]; ok {
		return hash
	}
	return rev.Name
}

// Owner is a workload whose template has revisions.
type Owner struct {
	metav1.Object
	Selector labels.Selector
	Template *v1.PodTemplateSpec
	// Collisions is how often the name of a new revision was taken; nil if never.
	Collisions *int32
}

// Plan is what has to be done so that the newest revision is that of the template.
type Plan struct {
	// Current is the revision of the template, as it should be. Create says that it has yet to be made,
	// Renumber that it has another number.
	Current          *appsv1.ControllerRevision
	Create, Renumber bool
	// Old are the others, from old to new. Those of the same template as Current are in Duplicates.
	Old, Duplicates []*appsv1.ControllerRevision
}

// PlanFor sorts the revisions of an owner, and finds or makes the one of its template.
func PlanFor(k Kind, o Owner, revs []*appsv1.ControllerRevision) (Plan, error) {
	data, err := dataOf(o.Template)
	if err != nil {
		return Plan{}, fmt.Errorf("template of %s %s/%s: %w", k.Kind, o.GetNamespace(), o.GetName(), err)
	}
	revs = slices.SortedFunc(slices.Values(revs), byRevision)
	var p Plan
	for _, rev := range slices.Backward(revs) {
		switch {
		case p.Current == nil && same(rev, o.Template, data):
			p.Current = rev
		case p.Current != nil && bytes.Equal(rev.Data.Raw, p.Current.Data.Raw):
			p.Duplicates = append(p.Duplicates, rev)
		default:
			p.Old = append(p.Old, rev)
		}
	}
	slices.Reverse(p.Old)
	var last int64
	for _, rev := range p.Old {
		last = max(last, rev.Revision)
	}
	switch {
	case p.Current == nil:
		p.Create, p.Current = true, k.newRevision(o, data, last+1)
	case p.Current.Revision <= last:
		p.Renumber, p.Current = true, p.Current.DeepCopy()
		p.Current.Revision = last + 1
	}
	return p, nil
}

// newRevision returns a revision of the owner's template.
func (k Kind) newRevision(o Owner, data []byte, number int64) *appsv1.ControllerRevision {
	hash := k.hash(o.Template, data, o.Collisions)
	room := validation.DNS1123SubdomainMaxLength - len("-") - len(hash)
	named := maps.Clone(o.Template.Labels)
	if named == nil {
		named = map[string]string{}
	}
	named[k.Label] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName()[:min(len(o.GetName()), room)] + "-" + hash,
			Labels: named, Annotations: maps.Clone(o.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o.Object, k.GroupVersionKind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// dataOf returns the data of a revision: a strategic merge patch that replaces the template.
func dataOf(t *v1.PodTemplateSpec) ([]byte, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	var template map[string]any
	if err := json.Unmarshal(text, &template); err != nil {
		return nil, err
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// TemplateOf returns the template that a revision has.
func TemplateOf(rev *appsv1.ControllerRevision) (*v1.PodTemplateSpec, error) {
	var data struct {
		Spec struct {
			Template *v1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(rev.Data.Raw, &data); err != nil {
		return nil, fmt.Errorf("data of controller revision %s/%s: %w", rev.Namespace, rev.Name, err)
	}
	if data.Spec.Template == nil {
		return nil, fmt.Errorf("controller revision %s/%s has no template", rev.Namespace, rev.Name)
	}
	return data.Spec.Template, nil
}

// same reports whether a revision has the template. One that another version wrote may lack fields
// that have a default since then, or write empty ones: that is no other template.
func same(rev *appsv1.ControllerRevision, t *v1.PodTemplateSpec, data []byte) bool {
	if bytes.Equal(rev.Data.Raw, data) {
		return true
	}
	was, err := TemplateOf(rev)
	if err != nil {
		return false
	}
	defaults.PodSpec(&was.Spec)
	return equality.Semantic.DeepEqual(was, t)
}

func byRevision(a, b *appsv1.ControllerRevision) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// Surplus returns the oldest revisions of old, which is sorted, above the limit: those that are alive
// count, but stay. There is no limit if it is nil or negative.
func Surplus(old []*appsv1.ControllerRevision, limit *int32, alive func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	if limit == nil || *limit < 0 {
		return nil
	}
	var out []*appsv1.ControllerRevision
	for _, rev := range old {
		if len(out) < len(old)-int(*limit) && !alive(rev) {
			out = append(out, rev)
		}
	}
	return out
}
