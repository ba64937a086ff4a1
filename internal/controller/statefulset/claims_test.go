package statefulset

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	retain = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	remove = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
)

func keeping(whenDeleted, whenScaled appsv1.PersistentVolumeClaimRetentionPolicyType) change {
	return func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"a": "b"}}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: whenDeleted, WhenScaled: whenScaled}
	}
}

// ref returns a reference by words: the kind (set, pod, or another one), "old" for an earlier object of
// the name, "plain" for one that does not control.
func ref(words, pod string) metav1.OwnerReference {
	r := metav1.OwnerReference{APIVersion: "x/v1", Kind: "Other", Name: "other", UID: "other", Controller: new(true)}
	for w := range strings.FieldsSeq(words) {
		switch w {
		case "set":
			r = *metav1.NewControllerRef(set(1), kind)
		case "pod":
			r = metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-" + pod), Controller: new(true)}
		case "old":
			r.UID = "earlier"
		case "plain":
			r.Controller = nil
		}
	}
	return r
}

// claims returns the claims of the pods with these names, each with one reference or none.
func claims(refs map[string]string) func(string) *v1.PersistentVolumeClaim {
	return func(name string) *v1.PersistentVolumeClaim {
		words, ok := refs[name]
		if !ok {
			return nil
		}
		c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
		if words == "dying" {
			c.DeletionTimestamp = new(metav1.NewTime(now))
		} else if words != "" {
			c.OwnerReferences = []metav1.OwnerReference{ref(words, strings.TrimPrefix(name, "data-"))}
		}
		return c
	}
}

func TestClaims(t *testing.T) {
	mounted := func(f facts) facts {
		for i, p := range f.pods {
			mountClaims(f.set, p, i)
		}
		return f
	}
	for name, tt := range map[string]struct {
		set    *appsv1.StatefulSet
		pods   string
		claims map[string]string
		want   string
	}{
		"made with the pod":                {set(1, keeping(retain, retain)), "", nil, "claim=data-web-0 +0:v2"},
		"there already":                    {set(1, keeping(retain, retain)), "", map[string]string{"data-web-0": ""}, "+0:v2"},
		"made for a pending pod":           {set(1, keeping(retain, retain)), "v2:pending", nil, "claim=data-web-0"},
		"not made for a running pod":       {set(1, keeping(retain, retain)), "v2:ready", nil, ""},
		"being deleted":                    {set(1, keeping(retain, retain)), "", map[string]string{"data-web-0": "dying"}, "+0:v2 no:pvc data-web-0 is being deleted"},
		"nobody's":                         {set(1, keeping(retain, retain)), "v2:ready", map[string]string{"data-web-0": ""}, ""},
		"the set's, but retained":          {set(1, keeping(retain, retain)), "v2:ready", map[string]string{"data-web-0": "set"}, "data-web-0->"},
		"to go with the set":               {set(1, keeping(remove, retain)), "v2:ready", map[string]string{"data-web-0": ""}, "data-web-0->StatefulSet/web"},
		"goes with the set":                {set(1, keeping(remove, retain)), "v2:ready", map[string]string{"data-web-0": "set"}, ""},
		"does not control":                 {set(1, keeping(remove, retain)), "v2:ready", map[string]string{"data-web-0": "set plain"}, "data-web-0->StatefulSet/web"},
		"was an earlier set's":             {set(1, keeping(remove, retain)), "v2:ready", map[string]string{"data-web-0": "set old"}, ""},
		"somebody else's":                  {set(1, keeping(remove, retain)), "v2:ready", map[string]string{"data-web-0": "other"}, ""},
		"somebody else's, a new pod":       {set(1, keeping(remove, retain)), "", map[string]string{"data-web-0": "other"}, "+0:v2 conflict:data-web-0"},
		"somebody else refers to it":       {set(1, keeping(remove, retain)), "v2:ready", map[string]string{"data-web-0": "other plain"}, "data-web-0->Other/other,StatefulSet/web"},
		"a pod that is too many":           {set(1, keeping(retain, remove)), "v2:ready v2:ready", map[string]string{"data-web-0": "", "data-web-1": ""}, "data-web-1->Pod/web-1 | -1"},
		"a pod that is not too many now":   {set(2, keeping(retain, remove)), "v2:ready v2:ready", map[string]string{"data-web-0": "", "data-web-1": "pod"}, "data-web-1->"},
		"with both, scaled":                {set(1, keeping(remove, remove)), "v2:ready v2:ready", map[string]string{"data-web-0": "set", "data-web-1": "set"}, "data-web-1->Pod/web-1 | -1"},
		"with both, back again":            {set(2, keeping(remove, remove)), "v2:ready v2:ready", map[string]string{"data-web-0": "set", "data-web-1": "pod"}, "data-web-1->StatefulSet/web"},
		"a claim that goes with its pod":   {set(1, keeping(retain, remove)), "", map[string]string{"data-web-0": "pod old"}, ""},
		"the same, but retained meanwhile": {set(1, keeping(retain, retain)), "", map[string]string{"data-web-0": "pod old"}, "+0:v2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := mounted(given(tt.set, tt.pods))
			f.current = f.update
			f.claim = claims(tt.claims)
			if got := doing(planFor(f)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNewClaim(t *testing.T) {
	s := set(1, keeping(remove, retain))
	c := newClaim(s, &s.Spec.VolumeClaimTemplates[0], 3)
	if c.Name != "data-web-3" || c.Namespace != "a" || c.Labels["app"] != "web" || c.Labels["a"] != "b" || !metav1.IsControlledBy(c, s) {
		t.Errorf("%+v", c.ObjectMeta)
	}
	if len(s.Spec.VolumeClaimTemplates[0].Labels) != 1 {
		t.Error("the template was changed")
	}
}

// Pods that were adopted get the labels and volumes of members, as far as the API server allows it.
func TestCorrected(t *testing.T) {
	s := set(2, keeping(retain, retain))
	p := podIn(s, 1, "v2", "ready")
	if next := corrected(s, p, 1); next == nil || !slices.ContainsFunc(next.Spec.Volumes, func(v v1.Volume) bool { return v.Name == "data" }) {
		t.Errorf("volumes: %+v", next)
	}
	mountClaims(s, p, 1)
	if next := corrected(s, p, 1); next != nil {
		t.Errorf("%+v", next)
	}
	delete(p.Labels, appsv1.StatefulSetPodNameLabel)
	if next := corrected(s, p, 1); next == nil || next.Labels[appsv1.StatefulSetPodNameLabel] != "web-1" || next.Labels[appsv1.PodIndexLabel] != "1" {
		t.Errorf("%+v", next)
	}
}

func TestMayHave(t *testing.T) {
	s := set(1, keeping(retain, retain))
	for name, want := range map[string]bool{"data-web-0": true, "data-web-17": true, "data-web-x": false, "other-web-0": false, "data-webx-0": false, "data-": false} {
		if mayHave(s, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
