package staticpod

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/internal/api/pods"
)

// table has the names of the pods that linger.
type table []types.NamespacedName

func (table) Set(*v1.Pod, bool)         {}
func (table) Remove(types.UID, *v1.Pod) {}

func (t table) Lingering() sets.Set[types.NamespacedName] { return sets.New(t...) }

// shown has the UID of the mirror of each static pod.
type shown map[types.UID]types.UID

func (s shown) SetMirror(static types.UID, mirror *v1.Pod) {
	if mirror == nil {
		delete(s, static)
	} else {
		s[static] = mirror.UID
	}
}

func pod(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid, Annotations: map[string]string{pods.AnnotationConfigHash: "1"}}}
}

func mirrorOf(uid types.UID) *v1.Pod {
	p := pod(uid)
	p.Annotations[pods.AnnotationConfigMirror] = "1"
	return p
}

// After a restart of the kubelet the API server's pods may be known before the directory was read.
// The status then used to be never written to the mirror.
func TestAMirrorThatWasSeenBeforeItsPodShowsItsStatus(t *testing.T) {
	status := shown{}
	p := New(Deps{Table: table{}, Status: status})
	p.SetMirror(mirrorOf("m"), false)
	p.Set("file", []*v1.Pod{pod("s")})
	if status["s"] != "m" {
		t.Errorf("mirrors: %v", status)
	}
}

// The news that a mirror is gone may arrive after another has been created.
func TestNewsOfAnOldMirrorDoNotHideTheNewOne(t *testing.T) {
	status := shown{}
	p := New(Deps{Table: table{}, Status: status})
	p.Set("file", []*v1.Pod{pod("s")})
	p.SetMirror(mirrorOf("new"), false)
	p.SetMirror(mirrorOf("old"), true)
	if status["s"] != "new" {
		t.Errorf("mirrors: %v", status)
	}
}

// The response to a creation may arrive after the news that the object is gone. A mirror that did
// not exist then used to be never created again.
func TestAMirrorThatWentBeforeItsCreationWasAnsweredIsMadeAgain(t *testing.T) {
	client := fake.NewClientset()
	p := New(Deps{
		Table: table{}, Status: shown{}, Client: client, Listed: func() bool { return true }, Settled: func() bool { return true },
		Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}} },
	})
	made := 0
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		made++
		m := mirrorOf("m")
		p.SetMirror(m, false)
		p.SetMirror(m, true)
		return true, m, nil
	})
	p.Set("file", []*v1.Pod{pod("s")})
	for range 2 {
		if err := p.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if made != 2 {
		t.Errorf("made %d times", made)
	}
}

// A missing namespace used to keep all other static pods from showing.
func TestAMirrorThatIsRefusedDoesNotHideOthers(t *testing.T) {
	client := fake.NewClientset()
	p := New(Deps{
		Table: table{}, Status: shown{}, Client: client, Listed: func() bool { return true }, Settled: func() bool { return true },
		Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}} },
	})
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetNamespace() == "none", nil, errors.New("no such namespace")
	})
	var all []*v1.Pod
	for _, ns := range []string{"a", "b", "none", "c", "d"} {
		one := pod(types.UID(ns))
		one.Namespace = ns
		all = append(all, one)
	}
	p.Set("file", all)
	if err := p.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "create mirror pod none/p: no such namespace") {
		t.Error(err)
	}
	list, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 4 {
		t.Errorf("%v, %d mirrors", err, len(list.Items))
	}
}

// A mirror used to go, or to be replaced by that of the next pod, while the containers of its own pod still had their
// grace period: kubectl did not show them any more, and a drain took the node for empty.
func TestAMirrorStaysUntilItsPodIsGone(t *testing.T) {
	old := mirrorOf("m")
	for name, next := range map[string][]*v1.Pod{"removed": nil, "replaced": {pod("next")}} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(old)
			left := table{nameOf(old)}
			p := New(Deps{
				Table: &left, Status: shown{}, Client: client, Listed: func() bool { return true }, Settled: func() bool { return true },
				Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}} },
			})
			p.SetMirror(old, false)
			for _, s := range next {
				s.Annotations[pods.AnnotationConfigHash] = "2"
			}
			p.Set("file", next)
			sync := func() (uids []types.UID) {
				if err := p.sync(t.Context()); err != nil {
					t.Fatal(err)
				}
				list, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for i := range list.Items {
					uids = append(uids, list.Items[i].UID)
				}
				return uids
			}
			if got := sync(); !slices.Equal(got, []types.UID{"m"}) {
				t.Errorf("while the pod ends, there are %v", got)
			}
			left = nil
			if got := sync(); len(got) != 0 {
				t.Errorf("when it is gone, there are %v", got)
			}
			p.SetMirror(old, true)
			if got := sync(); len(got) != len(next) {
				t.Errorf("there are %v, want %d", got, len(next))
			}
		})
	}
}

// A pod that is read again unchanged is the same pod, with the time at which it was first seen.
func TestWhatWasSeenBeforeStays(t *testing.T) {
	p := New(Deps{Table: table{}, Status: shown{}})
	read := func(seen, image string) *v1.Pod {
		one := pod("s")
		one.Annotations[pods.AnnotationConfigSeen] = seen
		one.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
		return one
	}
	first := read("1", "a")
	p.Set("http", []*v1.Pod{first})
	p.Set("http", []*v1.Pod{read("2", "a")})
	if p.byUID["s"] != first {
		t.Error("it is another pod")
	}
	p.Set("http", []*v1.Pod{read("3", "b")}) // a manifest may set its UID
	if got := p.byUID["s"]; got.Spec.Containers[0].Image != "b" || got.Annotations[pods.AnnotationConfigSeen] != "1" {
		t.Errorf("%+v", got)
	}
}
