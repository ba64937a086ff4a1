package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"wherry.dev/internal/api/defaults"
)

func template(image string) *v1.PodTemplateSpec {
	t := &v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
	defaults.PodSpec(&t.Spec)
	return t
}

func owner(image string) Owner {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "u", Annotations: map[string]string{"kubernetes.io/change-cause": "why"}}}
	return Owner{Object: set, Selector: labels.SelectorFromSet(labels.Set{"app": "web"}), Template: template(image)}
}

// rev returns a revision of an image with a number, as PlanFor makes them.
func rev(t *testing.T, image string, number int64) *appsv1.ControllerRevision {
	t.Helper()
	p, err := PlanFor(StatefulSets, owner(image), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Current.Revision = number
	p.Current.CreationTimestamp = metav1.NewTime(time.Unix(number, 0))
	return p.Current
}

// other returns the revision with the data as another version of Kubernetes may have written it.
func other(r *appsv1.ControllerRevision, name, from, to string) *appsv1.ControllerRevision {
	r.Name = name
	r.Data.Raw = []byte(strings.ReplaceAll(string(r.Data.Raw), from, to))
	return r
}

func summary(p Plan) string {
	names := func(list []*appsv1.ControllerRevision) (out string) {
		for _, r := range list {
			t, err := TemplateOf(r)
			if err != nil {
				out += "?"
				continue
			}
			out += fmt.Sprintf("%s#%d ", t.Spec.Containers[0].Image, r.Revision)
		}
		return strings.TrimSpace(out)
	}
	what := "keep"
	switch {
	case p.Create:
		what = "create"
	case p.Renumber:
		what = "renumber"
	}
	return fmt.Sprintf("%s %s old [%s] twice [%s]", what, names([]*appsv1.ControllerRevision{p.Current}), names(p.Old), names(p.Duplicates))
}

func TestPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		revs []*appsv1.ControllerRevision
		want string
	}{
		"the first":             {nil, "create v1#1 old [] twice []"},
		"nothing new":           {[]*appsv1.ControllerRevision{rev(t, "v1", 1)}, "keep v1#1 old [] twice []"},
		"a new template":        {[]*appsv1.ControllerRevision{rev(t, "v3", 7), rev(t, "v2", 4)}, "create v1#8 old [v2#4 v3#7] twice []"},
		"back to an old one":    {[]*appsv1.ControllerRevision{rev(t, "v1", 1), rev(t, "v2", 2)}, "renumber v1#3 old [v2#2] twice []"},
		"the same number twice": {[]*appsv1.ControllerRevision{rev(t, "v1", 2), rev(t, "v2", 2)}, "renumber v1#3 old [v2#2] twice []"},
		"the same twice":        {[]*appsv1.ControllerRevision{rev(t, "v1", 3), rev(t, "v2", 2), other(rev(t, "v1", 1), "x", "", "")}, "keep v1#3 old [v2#2] twice [v1#1]"},
		"written by a version that wrote empty fields": {
			[]*appsv1.ControllerRevision{other(rev(t, "v1", 1), "x", `"metadata":{`, `"metadata":{"creationTimestamp":null,`)}, "keep v1#1 old [] twice []",
		},
		"written by a version without a default": {
			[]*appsv1.ControllerRevision{other(rev(t, "v1", 1), "x", `"terminationMessagePolicy":"File",`, "")}, "keep v1#1 old [] twice []",
		},
		"garbage": {
			[]*appsv1.ControllerRevision{{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Revision: 9, Data: runtime.RawExtension{Raw: []byte("7")}}}, "create v1#10 old [?] twice []",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := PlanFor(StatefulSets, owner("v1"), tt.revs)
			if err != nil {
				t.Fatal(err)
			}
			if got := summary(p); got != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

// Two owners with the same template, and one with two collisions, have revisions of different names.
func TestNames(t *testing.T) {
	long := owner("v1")
	long.SetName(strings.Repeat("w", 250))
	again := owner("v1")
	again.Collisions = new(int32(1))
	for name, tt := range map[string]struct {
		kind Kind
		o    Owner
	}{
		"web": {StatefulSets, owner("v1")}, "with a collision": {StatefulSets, again}, "a long name": {StatefulSets, long},
		"a daemon set": {DaemonSets, owner("v1")}, "a daemon set with a collision": {DaemonSets, again},
	} {
		p, err := PlanFor(tt.kind, tt.o, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, hash := p.Current, tt.kind.HashOf(p.Current)
		prefix := tt.o.GetName()[:min(len(tt.o.GetName()), 253-1-len(hash))]
		if r.Name != prefix+"-"+hash || len(r.Name) > 253 || r.Labels["app"] != "web" || r.Labels[tt.kind.Label] != hash ||
			!metav1.IsControlledBy(r, tt.o.Object) || r.Annotations["kubernetes.io/change-cause"] != "why" || len(tt.o.Template.Labels) != 1 {
			t.Errorf("%s: %+v", name, r.ObjectMeta)
		}
	}
	seen := map[string]bool{}
	for _, o := range []Owner{owner("v1"), again, owner("v2")} {
		p, err := PlanFor(StatefulSets, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		if seen[p.Current.Name] {
			t.Errorf("%s twice", p.Current.Name)
		}
		seen[p.Current.Name] = true
	}
}

// Upstream hashes the data and the number of collisions with FNV-1, not 1a as it does templates.
func TestHashOfTheDataIsUpstreams(t *testing.T) {
	data := []byte(`{"spec":{"template":{"$patch":"replace"}}}`)
	for collisions, suffix := range map[*int32]string{nil: "0", new(int32): "0", new(int32(12)): "12"} {
		h := uint32(2166136261)
		for _, b := range append(slices.Clone(data), suffix...) {
			h = h*16777619 ^ uint32(b)
		}
		if got, want := StatefulSets.hash(nil, data, collisions), rand.SafeEncodeString(fmt.Sprint(h)); got != want {
			t.Errorf("with %s: %q, want %q", suffix, got, want)
		}
	}
}

// The data is a patch that gives a set the template back, as kubectl applies it.
func TestDataRestoresTheTemplate(t *testing.T) {
	old := template("v1")
	old.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", Value: "b"}}
	data, err := dataOf(old)
	if err != nil {
		t.Fatal(err)
	}
	now := appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{ServiceName: "s", Template: *template("v2")}}
	now.Spec.Template.Spec.Containers = append(now.Spec.Template.Spec.Containers, v1.Container{Name: "second", Image: "x"})
	before, err := json.Marshal(now)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, data, appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	var got appsv1.StatefulSet
	if err := json.Unmarshal(after, &got); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(got.Spec.Template, *old) || got.Spec.ServiceName != "s" {
		t.Errorf("%s", after)
	}
	read, err := TemplateOf(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: data}})
	if err != nil || !equality.Semantic.DeepEqual(read, old) {
		t.Errorf("%+v, %v", read, err)
	}
}

func TestSurplus(t *testing.T) {
	var old []*appsv1.ControllerRevision
	for n := range int64(4) {
		old = append(old, rev(t, fmt.Sprint("v", n), n))
	}
	limit := func(n int32) *int32 { return &n }
	for name, tt := range map[string]struct {
		limit *int32
		alive string
		want  string
	}{
		"no limit": {nil, "", ""}, "for ever": {limit(-1), "", ""}, "room": {limit(4), "", ""},
		"one": {limit(3), "", "v0"}, "all": {limit(0), "", "v0 v1 v2 v3"},
		"the oldest is alive": {limit(3), "v0", "v1"}, "all are alive": {limit(0), "v0 v1 v2 v3", ""},
	} {
		var got []string
		image := func(r *appsv1.ControllerRevision) string {
			spec, err := TemplateOf(r)
			if err != nil {
				t.Fatal(err)
			}
			return spec.Spec.Containers[0].Image
		}
		for _, r := range Surplus(old, tt.limit, func(r *appsv1.ControllerRevision) bool { return strings.Contains(tt.alive, image(r)) }) {
			got = append(got, image(r))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", name, got, tt.want)
		}
	}
}
