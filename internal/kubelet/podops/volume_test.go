package podops

import (
	"context"
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/volume"
)

// heard has the events.
type heard []string

func (h *heard) Eventf(_ runtime.Object, kind, reason, format string, args ...any) {
	*h = append(*h, kind+" "+reason+" "+fmt.Sprintf(format, args...))
}

// pending has claims without a volume.
type pending struct{}

func (pending) ConfigMap(string, string) (*v1.ConfigMap, error) { return nil, errors.New("none") }
func (pending) Secret(string, string) (*v1.Secret, error)       { return nil, errors.New("none") }
func (pending) Claim(string, string) (*v1.PersistentVolumeClaim, error) {
	return &v1.PersistentVolumeClaim{Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}}, nil
}

// TestAClaimThatIsBoundAMomentLater: the event used to come with every pod whose volume was made for it.
func TestAClaimThatIsBoundAMomentLater(t *testing.T) {
	events := &heard{}
	dirs := criconfig.Dirs{Root: t.TempDir()}
	o := New(Config{Dirs: dirs}, Deps{Events: events, Volumes: &volume.Mounter{
		Dirs: dirs, Objects: func(context.Context) volume.Objects { return pending{} },
	}})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{Volumes: []v1.Volume{{
		Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
	}}}}
	op := podplan.Op{Kind: podplan.MountVolume, Name: "v"}
	in := &podplan.Input{Pod: pod, Failures: map[podplan.Key]podplan.Failure{}}
	for tries := range 2 {
		if res := o.mountVolume(t.Context(), op, in); res.Err == nil {
			t.Fatal("it is mounted")
		}
		if len(*events) != tries {
			t.Errorf("after %d tries: %q", tries+1, *events)
		}
		in.Failures[op.Key()] = podplan.Failure{Count: tries + 1}
	}
	const want = "Warning FailedMount Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], " +
		"failed to process volumes=[v]: error processing PVC ns/c: PVC is not bound"
	if (*events)[0] != want {
		t.Error((*events)[0])
	}
}
