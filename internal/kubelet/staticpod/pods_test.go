package staticpod

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podconfig"
)

type table struct{}

func (table) Set(*v1.Pod, bool)         {}
func (table) Remove(types.UID, *v1.Pod) {}

// shown has the mirror's UID of each static pod.
type shown map[types.UID]types.UID

func (s shown) SetMirror(static types.UID, mirror *v1.Pod) {
	if mirror == nil {
		delete(s, static)
	} else {
		s[static] = mirror.UID
	}
}

func pod(uid types.UID, hash string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid, Annotations: map[string]string{podconfig.AnnotationConfigHash: hash}}}
}

func mirrorOf(uid types.UID, hash string) *v1.Pod {
	p := pod(uid, hash)
	p.Annotations[podconfig.AnnotationConfigMirror] = hash
	return p
}

// After a restart of the kubelet the API server's pods may be there before the folder
// was read: the status was then never written to the mirror.
func TestAMirrorThatWasSeenBeforeItsPodShowsItsStatus(t *testing.T) {
	status := shown{}
	p := New(Deps{Table: table{}, Status: status})
	p.SetMirror(mirrorOf("m", "1"), false)
	p.Set("file", []*v1.Pod{pod("s", "1")})
	if status["s"] != "m" {
		t.Errorf("mirrors: %v", status)
	}
}

// The news that a mirror is gone may come when another has been made.
func TestNewsOfAnOldMirrorDoNotHideTheNewOne(t *testing.T) {
	status := shown{}
	p := New(Deps{Table: table{}, Status: status})
	p.Set("file", []*v1.Pod{pod("s", "1")})
	p.SetMirror(mirrorOf("new", "1"), false)
	p.SetMirror(mirrorOf("old", "1"), true)
	if status["s"] != "new" {
		t.Errorf("mirrors: %v", status)
	}
}
