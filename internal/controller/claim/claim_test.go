package claim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller/claim"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

func set(name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)}}
}

type change func(*v1.Pod)

func pod(name string, changes ...change) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}}}
	for _, c := range changes {
		c(p)
	}
	return p
}

func of(owner string) change {
	return func(p *v1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, *metav1.NewControllerRef(set(owner), kind))
	}
}

func other(p *v1.Pod) { p.Labels["app"] = "db" }

func dying(o metav1.Object) { o.SetDeletionTimestamp(new(metav1.Now())) }

func in(namespace string) change { return func(p *v1.Pod) { p.Namespace = namespace } }

func matches(p *v1.Pod) bool {
	return labels.SelectorFromSet(labels.Set{"app": "web"}).Matches(labels.Set(p.Labels))
}

func names(objs []*v1.Pod) string {
	var out []string
	for _, o := range objs {
		out = append(out, o.Name)
	}
	return strings.Join(out, " ")
}

func TestSort(t *testing.T) {
	for name, tt := range map[string]struct {
		ownerDies bool
		pod       *v1.Pod
		want      string
	}{
		"its own":                               {pod: pod("p", of("rs")), want: "mine"},
		"its own, dying":                        {pod: pod("p", of("rs"), func(p *v1.Pod) { dying(p) }), want: "mine"},
		"its own, of a dying owner":             {ownerDies: true, pod: pod("p", of("rs")), want: "mine"},
		"its own that no longer matches":        {pod: pod("p", of("rs"), other), want: "release"},
		"no longer matches, but the owner dies": {ownerDies: true, pod: pod("p", of("rs"), other)},
		"somebody else's":                       {pod: pod("p", of("rs2"))},
		"an orphan":                             {pod: pod("p"), want: "adopt"},
		"an orphan with another reference": {pod: pod("p", func(p *v1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ConfigMap", Name: "c", UID: "c"}}
		}), want: "adopt"},
		"an orphan that does not match":     {pod: pod("p", other)},
		"an orphan that dies":               {pod: pod("p", func(p *v1.Pod) { dying(p) })},
		"an orphan, but the owner dies":     {ownerDies: true, pod: pod("p")},
		"an orphan of another namespace":    {pod: pod("p", in("b"))},
		"its own of a dying owner, dying":   {ownerDies: true, pod: pod("p", of("rs"), func(p *v1.Pod) { dying(p) }), want: "mine"},
		"its own that ends and lost labels": {pod: pod("p", of("rs"), other, func(p *v1.Pod) { dying(p) }), want: "release"},
	} {
		t.Run(name, func(t *testing.T) {
			owner := set("rs")
			if tt.ownerDies {
				dying(owner)
			}
			s := claim.Sort(owner, matches, []*v1.Pod{tt.pod})
			var got []string
			for what, list := range map[string][]*v1.Pod{"mine": s.Mine, "adopt": s.Adopt, "release": s.Release} {
				if len(list) > 0 {
					got = append(got, what)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %q", got, tt.want)
			}
		})
	}
}

func TestClaim(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p")
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil)
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		live    func() (metav1.Object, error)
		patch   map[string]error // pod → what the API server answers
		pods    []*v1.Pod
		want    string
		patched string
		err     string
	}{
		"nothing to do":               {pods: []*v1.Pod{pod("p", of("rs"))}, want: "p"},
		"adopts and releases":         {pods: []*v1.Pod{pod("p", of("rs")), pod("q"), pod("r", of("rs"), other)}, want: "p q", patched: "q r"},
		"a released one is gone":      {pods: []*v1.Pod{pod("r", of("rs"), other)}, patch: map[string]error{"r": gone}},
		"a released one was replaced": {pods: []*v1.Pod{pod("r", of("rs"), other)}, patch: map[string]error{"r": invalid}},
		"a release fails":             {pods: []*v1.Pod{pod("p", of("rs")), pod("r", of("rs"), other)}, patch: map[string]error{"r": broken}, want: "p", err: "release a/r: broken"},
		"an adopted one is gone":      {pods: []*v1.Pod{pod("q")}, patch: map[string]error{"q": gone}},
		"an adopted one has another controller meanwhile": {
			pods: []*v1.Pod{pod("q"), pod("p", of("rs"))}, patch: map[string]error{"q": invalid}, want: "p", err: "adopt a/q: ",
		},
		"the owner is gone": {
			live: func() (metav1.Object, error) { return nil, gone },
			pods: []*v1.Pod{pod("q")}, err: "may ReplicaSet a/rs adopt: ",
		},
		"the owner is another one": {
			live: func() (metav1.Object, error) {
				o := set("rs")
				o.UID = "second"
				return o, nil
			},
			pods: []*v1.Pod{pod("q")}, err: "original ReplicaSet a/rs is gone: got uid second, wanted rs",
		},
		"the owner is dying": {
			live: func() (metav1.Object, error) {
				o := set("rs")
				dying(o)
				return o, nil
			},
			pods: []*v1.Pod{pod("q")}, err: "ReplicaSet a/rs has just been deleted at ",
		},
		"nobody asks for the owner without an orphan": {
			live: func() (metav1.Object, error) { return nil, broken },
			pods: []*v1.Pod{pod("p", of("rs")), pod("r", of("rs"), other)}, want: "p", patched: "r",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var patched []string
			o := claim.Owner[*v1.Pod]{
				Object: set("rs"), Kind: kind, Matches: matches,
				Live: func(context.Context) (metav1.Object, error) {
					if tt.live != nil {
						return tt.live()
					}
					return set("rs"), nil
				},
				Patch: func(_ context.Context, p *v1.Pod, patch []byte) error {
					if err := tt.patch[p.Name]; err != nil {
						return err
					}
					if !strings.Contains(string(patch), fmt.Sprintf(`"uid":"%s"`, p.UID)) {
						t.Errorf("patch of %s has no precondition: %s", p.Name, patch)
					}
					patched = append(patched, p.Name)
					return nil
				},
			}
			got, err := o.Claim(t.Context(), tt.pods)
			slices.Sort(patched)
			if text := fmt.Sprint(err); tt.err == "" && err != nil || !strings.Contains(text, tt.err) {
				t.Errorf("error: %v, want %q", err, tt.err)
			}
			if names(got) != tt.want || strings.Join(patched, " ") != tt.patched {
				t.Errorf("claimed %q, patched %q", names(got), patched)
			}
		})
	}
}

// An owner that marks what it has does so in the same write.
func TestFinalizerComesAndGoesWithTheOwner(t *testing.T) {
	patches := map[string]string{}
	o := claim.Owner[*v1.Pod]{
		Object: set("rs"), Kind: kind, Matches: matches, Finalizer: "example.com/f",
		Live: func(context.Context) (metav1.Object, error) { return set("rs"), nil },
		Patch: func(_ context.Context, p *v1.Pod, patch []byte) error {
			patches[p.Name] = string(patch)
			return nil
		},
	}
	if _, err := o.Claim(t.Context(), []*v1.Pod{pod("q"), pod("r", of("rs"), other)}); err != nil {
		t.Fatal(err)
	}
	if got := patches["q"]; !strings.Contains(got, `"finalizers":["example.com/f"]`) {
		t.Errorf("adoption: %s", got)
	}
	if got := patches["r"]; !strings.Contains(got, `"$deleteFromPrimitiveList/finalizers":["example.com/f"]`) {
		t.Errorf("release: %s", got)
	}
}

func TestIndex(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &v1.Pod{}, 0, cache.Indexers{})
	for range 2 {
		if err := claim.AddIndex(informer); err != nil {
			t.Fatal(err)
		}
	}
	indexer := informer.GetIndexer()
	for _, p := range []*v1.Pod{pod("mine", of("rs")), pod("theirs", of("rs2")), pod("orphan"), pod("far", in("b"))} {
		if err := indexer.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	got, err := claim.Candidates[*v1.Pod](indexer, set("rs"))
	if err != nil || names(got) != "mine orphan" {
		t.Errorf("candidates: %s, %v", names(got), err)
	}
	if got, err = claim.Controlled[*v1.Pod](indexer, "rs2"); err != nil || names(got) != "theirs" {
		t.Errorf("controlled: %s, %v", names(got), err)
	}
}
