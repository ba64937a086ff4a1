package orphans

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// node has a runtime with sandboxes, and the table of the workers.
type node struct {
	internalapi.RuntimeService
	sandboxes []types.UID
	failures  int // of the next lists
	adopted   map[types.UID]*v1.Pod
}

func (n *node) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	if n.failures > 0 {
		n.failures--
		return nil, errors.New("busy")
	}
	list := []*runtimeapi.PodSandbox{{Id: "of somebody else"}}
	for _, uid := range n.sandboxes {
		list = append(list, &runtimeapi.PodSandbox{
			Labels:      map[string]string{pods.LabelPodUID: string(uid), pods.LabelPodName: "name-" + string(uid)},
			Annotations: map[string]string{pods.AnnotationPodGrace: "7"},
		})
	}
	return list, nil
}

func (n *node) Get(uid types.UID) (podworker.Snapshot, bool) {
	return podworker.Snapshot{}, n.adopted[uid] != nil
}

func (n *node) Adopt(pod *v1.Pod) { n.adopted[pod.UID] = pod }

func (n *node) expect(t *testing.T, when string, uids ...types.UID) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(n.adopted)); !slices.Equal(got, uids) {
		t.Errorf("%s: %v, not %v", when, got, uids)
	}
}

func newOrphans(t *testing.T, n *node, groups ...types.UID) *Orphans {
	t.Helper()
	n.adopted = map[types.UID]*v1.Pod{}
	dirs := criconfig.Dirs{Root: t.TempDir()}
	records, err := podworker.OpenRecords(dirs.Records())
	if err = errors.Join(err, os.Mkdir(dirs.Pods(), 0o750)); err != nil {
		t.Fatal(err)
	}
	return New(Deps{Runtime: n, Records: records, Dirs: dirs, Table: n, Groups: func() ([]types.UID, error) { return groups, nil }})
}

func TestAllThatIsKnownIsAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{sandboxes: []types.UID{"ran"}, failures: 3}
		o := newOrphans(t, n)
		err := errors.Join(
			o.deps.Records.Write("recorded", podplan.Record{Name: "r", Grace: 5}),
			o.deps.Records.Write("refused", podplan.Record{Static: true, Verdict: &podplan.Verdict{}}),
			os.Mkdir(o.deps.Dirs.Pod("unrecorded"), 0o750),
		)
		if err != nil {
			t.Fatal(err)
		}
		ran, err := o.AdoptAll(t.Context())
		if err != nil || !maps.Equal(ran, map[types.UID]bool{"ran": true}) {
			t.Errorf("%v, %v", ran, err)
		}
		n.expect(t, "at the start", "ran", "recorded", "refused", "unrecorded")
		if p := n.adopted["ran"]; p.Name != "name-ran" || *p.Spec.TerminationGracePeriodSeconds != 7 {
			t.Errorf("%+v", p)
		}
		if p := n.adopted["recorded"]; p.Name != "r" || *p.Spec.TerminationGracePeriodSeconds != 5 {
			t.Errorf("%+v", p)
		}
		if rec, err := o.deps.Records.Read("refused"); err != nil || rec.Ending == nil || !rec.Ending.Removed {
			t.Errorf("a static pod that was refused does not get another chance: %+v, %v", rec, err)
		}
		n.sandboxes = append(n.sandboxes, "late")
		o.Adopt(t.Context(), "late")
		o.Adopt(t.Context(), "gone again")
		n.expect(t, "later", "late", "ran", "recorded", "refused", "unrecorded")
	})
}

func TestWhatIsLeftBehindIsAdoptedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		o := newOrphans(t, n, "grouped", "known")
		n.adopted["known"] = &v1.Pod{}
		if err := os.Mkdir(o.deps.Dirs.Pod("stored"), 0o750); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := o.Run(ctx); err != nil {
			t.Error(err)
		}
		n.expect(t, "after a while", "grouped", "known", "stored")
		if n.adopted["known"].UID != "" {
			t.Error("a pod that is known was adopted")
		}
	})
}
