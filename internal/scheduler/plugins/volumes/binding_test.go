package volumes

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func TestBindingFilter(t *testing.T) {
	zone := v1.LabelTopologyZone
	n1 := node("n1", zone, "z1")
	dynamic := class("dyn", "d", later)
	immediate := class("now", "d", storagev1.VolumeBindingImmediate)
	limited := driver(func(s *storagev1.CSIDriverSpec) { s.StorageCapacity = new(true) })
	gcePD := func(p *v1.PersistentVolume) {
		p.Spec.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{PDName: "x"}
	}
	migrated := csiNode(nil)
	metav1.SetMetaDataAnnotation(&migrated.ObjectMeta, v1.MigratedPluginsAnnotationKey, "kubernetes.io/gce-pd")
	const unbound = "!pod has unbound immediate PersistentVolumeClaims"
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		objs []any
		want string
	}{
		"no claims":     {pod("p"), nil, ""},
		"no such claim": {pod("p", using("c")), nil, `!persistentvolumeclaim "c" not found`},
		"not made yet": {pod("p", generic), nil,
			`!waiting for ephemeral volume controller to create the persistentvolumeclaim "p-a"`},
		"somebody else's": {pod("p", generic), []any{claim("p-a")},
			"!PVC ns/p-a was not created for pod ns/p (pod is not owner)"},
		"made for the pod": {pod("p", generic), []any{claim("p-a", ownedBy("p")), local, pv("v")}, ""},
		"lost": {pod("p", using("c")),
			[]any{claim("c", has("v"),
				func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimLost })}, `!persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`},
		"being deleted": {pod("p", using("c")),
			[]any{claim("c", func(c *v1.PersistentVolumeClaim) { c.DeletionTimestamp = new(metav1.Now()) })}, `!persistentvolumeclaim "c" is being deleted`},
		"immediate":     {pod("p", using("c")), []any{claim("c", ofClass("now")), immediate}, unbound},
		"no class":      {pod("p", using("c")), []any{claim("c", ofClass(""))}, unbound},
		"unknown class": {pod("p", using("c")), []any{claim("c")}, unbound},
		"prebound": {pod("p", using("c")),
			[]any{claim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), local}, unbound},
		"bound": {pod("p", using("c")), []any{claim("c", has("v")), pv("v", atNode("n1"))}, ""},
		"bound elsewhere": {pod("p", using("c")), []any{claim("c", has("v")), pv("v", atNode("n2"))},
			"!" + reasonAffinity},
		"bound to nothing": {pod("p", using("c")), []any{claim("c", has("v"))}, "!" + reasonGone},
		"in-tree":          {pod("p", using("c")), []any{claim("c", has("v")), pv("v", gcePD, at(zone, "z1"))}, ""},
		"taken over by CSI": {pod("p", using("c")), []any{claim("c", has("v")), pv("v", gcePD, at(zone, "z1")), migrated},
			"!" + reasonAffinity},
		"free":           {pod("p", using("c")), []any{claim("c"), local, pv("v", atNode("n1"))}, ""},
		"free elsewhere": {pod("p", using("c")), []any{claim("c"), local, pv("v", atNode("n2"))}, "!" + reasonBind},
		"one for two":    {pod("p", using("c", "d")), []any{claim("c"), claim("d"), local, pv("v")}, "!" + reasonBind},
		"two for two": {pod("p", using("c", "d")),
			[]any{claim("c"), claim("d", wants("2Gi")), local, pv("v"), pv("w", sized("2Gi"))}, ""},
		"used twice": {pod("p", using("c", "c")), []any{claim("c"), local, pv("v")}, ""},
		"of another class": {pod("p", using("c")),
			[]any{claim("c"), local,
				pv("v", func(p *v1.PersistentVolume) { p.Spec.StorageClassName = "x" })}, "!" + reasonBind},
		"two reasons": {pod("p", using("b", "c")),
			[]any{claim("b", has("w")), pv("w", atNode("n2")), claim("c"), local}, "!" + reasonAffinity + ", " + reasonBind},
		"to be made": {pod("p", using("c")), []any{claim("c", ofClass("dyn")), dynamic}, ""},
		"no room":    {pod("p", using("c")), []any{claim("c", ofClass("dyn")), dynamic, limited}, "!" + reasonSpace},
		"room": {pod("p", using("c")),
			[]any{claim("c", ofClass("dyn")), dynamic, limited, room("r", "dyn", "z1", "1Gi")}, ""},
		"being made here": {pod("p", using("c")), []any{claim("c", ofClass("dyn"), selected("n1")), dynamic}, ""},
		"being made there": {pod("p", using("c")),
			[]any{claim("c", ofClass("dyn"), selected("n2")), dynamic, claim("d")}, "!" + reasonBind},
	} {
		w := newWorld(t)
		b := w.binding(configv1.VolumeBindingArgs{})
		for _, obj := range append(tc.objs, n1) {
			w.set(obj)
		}
		w.snap([]*v1.Node{n1})
		if got := ask(t, b, newState(), tc.pod, w.info("n1")); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// What one pod was promised is not there for the next one, until it is given back or the API server knows of it.
func TestAPromiseIsKeptFromOthers(t *testing.T) {
	n1 := node("n1")
	for name, what := range map[string][]any{
		"a volume":                   {claim("c"), claim("d"), local, pv("v")},
		"the node of a shared claim": {claim("c", ofClass("dyn")), class("dyn", "d", later)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.binding(configv1.VolumeBindingArgs{})
			for _, obj := range append(what, n1, node("n2")) {
				w.set(obj)
			}
			w.snap([]*v1.Node{n1, node("n2")})
			second, where := pod("q", using("d")), "n1"
			if len(what) == 2 {
				second, where = pod("q", using("c")), "n2"
			}
			state := newState()
			if got := ask(t, b, state, pod("p", using("c")), w.info("n1")); got != "" {
				t.Fatal(got)
			}
			if st := b.Reserve(t.Context(), state, pod("p"), "n1"); !st.IsSuccess() {
				t.Fatal(st.AsError())
			}
			if got := ask(t, b, newState(), second, w.info(where)); got != "!"+reasonBind {
				t.Errorf("promised: %q", got)
			}
			b.Unreserve(t.Context(), state, pod("p"), "n1")
			b.Unreserve(t.Context(), state, pod("p"), "n1")
			if got := ask(t, b, newState(), second, w.info(where)); got != "" {
				t.Errorf("given back: %q", got)
			}
		})
	}
}

// An old attempt that gives back for a second time takes nothing from a new one.
func TestOnlyOnesOwnPromiseIsGivenBack(t *testing.T) {
	w := newWorld(t)
	b := w.binding(configv1.VolumeBindingArgs{})
	for _, obj := range []any{claim("c"), claim("d"), local, pv("v"), node("n1")} {
		w.set(obj)
	}
	w.snap([]*v1.Node{node("n1")})
	first, second := newState(), newState()
	ask(t, b, first, pod("p", using("c")), w.info("n1"))
	b.Reserve(t.Context(), first, pod("p"), "n1")
	b.Unreserve(t.Context(), first, pod("p"), "n1")
	ask(t, b, second, pod("q", using("d")), w.info("n1"))
	if st := b.Reserve(t.Context(), second, pod("q"), "n1"); !st.IsSuccess() {
		t.Fatal(st.AsError())
	}
	b.Unreserve(t.Context(), first, pod("p"), "n1")
	if got := ask(t, b, newState(), pod("r", using("c")), w.info("n1")); got != "!"+reasonBind {
		t.Errorf("%q", got)
	}
}

// Between the API server's answer and the news of it, the volume is not free either.
func TestWhatWasWrittenIsNotGivenBack(t *testing.T) {
	w := newWorld(t)
	b := w.binding(configv1.VolumeBindingArgs{BindTimeoutSeconds: new(int64(0))})
	for _, obj := range []any{claim("c"), claim("d"), local, pv("v"), node("n1")} {
		w.set(obj)
	}
	w.snap([]*v1.Node{node("n1")})
	var sent *v1.PersistentVolume
	w.client.PrependReactor("update", "persistentvolumes", func(a ktesting.Action) (bool, runtime.Object, error) {
		u, _ := a.(ktesting.UpdateAction)
		sent, _ = u.GetObject().(*v1.PersistentVolume)
		sent = sent.DeepCopy()
		sent.ResourceVersion = "2"
		return true, sent, nil
	})
	state, p := newState(), pod("p", using("c"), on("n1"))
	ask(t, b, state, p, w.info("n1"))
	b.Reserve(t.Context(), state, p, "n1")
	st := b.PreBind(t.Context(), state, p, "n1")
	if st.Message() != "binding volumes: context deadline exceeded" {
		t.Fatal(st.Message())
	}
	if ref := sent.Spec.ClaimRef; ref == nil || ref.Kind != "PersistentVolumeClaim" || ref.Name != "c" || ref.UID != "c" || sent.Annotations[volume.AnnBoundByController] != "yes" {
		t.Errorf("%+v", sent)
	}
	b.Unreserve(t.Context(), state, p, "n1")
	free := func() bool { return ask(t, b, newState(), pod("q", using("d")), w.info("n1")) == "" }
	if free() {
		t.Error("it is free, although the API server has been told")
	}
	w.set(sent)
	if free() {
		t.Error("it is free, although it is kept for the other claim")
	}
	w.set(pv("v", func(p *v1.PersistentVolume) { p.ResourceVersion = "3" }))
	if !free() {
		t.Error("it is not free, although somebody has reset it")
	}
}

// A volume that has changed since the pod's cycle began is not promised.
func TestAChangeInBetweenFailsTheAttempt(t *testing.T) {
	w := newWorld(t)
	b := w.binding(configv1.VolumeBindingArgs{})
	for _, obj := range []any{claim("c"), local, pv("v"), node("n1")} {
		w.set(obj)
	}
	w.snap([]*v1.Node{node("n1")})
	state := newState()
	ask(t, b, state, pod("p", using("c")), w.info("n1"))
	w.set(pv("v", kept("other", "other"), func(p *v1.PersistentVolume) { p.ResourceVersion = "2" }))
	if got := words(b.Reserve(t.Context(), state, pod("p"),
		"n1")); got != `error: persistentvolumes "v" has changed since the scheduler looked at it` {
		t.Errorf("%q", got)
	}
}

// The plugins of two profiles know of each other's promises.
func TestProfilesShareWhatIsPromised(t *testing.T) {
	w := newWorld(t)
	factory := BindingFactory()
	var both []*Binding
	for range 2 {
		pl, err := factory(t.Context(), &configv1.VolumeBindingArgs{}, w)
		if err != nil {
			t.Fatal(err)
		}
		b, ok := pl.(*Binding)
		if !ok {
			t.Fatalf("got a %T", pl)
		}
		both = append(both, b)
	}
	for _, obj := range []any{claim("c"), claim("d"), local, pv("v"), node("n1")} {
		w.set(obj)
	}
	w.snap([]*v1.Node{node("n1")})
	state := newState()
	ask(t, both[0], state, pod("p", using("c")), w.info("n1"))
	if st := both[0].Reserve(t.Context(), state, pod("p"), "n1"); !st.IsSuccess() {
		t.Fatal(st.AsError())
	}
	if got := ask(t, both[1], newState(), pod("q", using("d")), w.info("n1")); got != "!"+reasonBind {
		t.Errorf("%q", got)
	}
}

func TestBindingArguments(t *testing.T) {
	for name, tc := range map[string]struct {
		args configv1.VolumeBindingArgs
		want string
	}{
		"negative": {configv1.VolumeBindingArgs{BindTimeoutSeconds: new(int64(-1))},
			"bindTimeoutSeconds: Invalid value: -1: should not be negative"},
		"shape": {configv1.VolumeBindingArgs{Shape: []configv1.UtilizationShapePoint{{Utilization: 101}}},
			"shape[0].utilization: Invalid value: 101: not in valid range [0-100]"},
	} {
		_, err := BindingFactory()(t.Context(), &tc.args, newWorld(t))
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStorageIsScored: as upstream does since 1.37, without any configuration, the node with more room is the better one.
func TestStorageIsScored(t *testing.T) {
	w := newWorld(t, local, claim("c"), node("n1"))
	w.snap([]*v1.Node{node("n1")})
	b, state, p := w.binding(configv1.VolumeBindingArgs{}), newState(), pod("p", using("c"))
	ask(t, b, state, p, w.info("n1"))
	if st := b.PreScore(t.Context(), state, p, nil); !st.IsSuccess() {
		t.Error(st)
	}
	if empty, full := b.shape.Score(0, 100), b.shape.Score(100, 100); empty != 100 || full != 0 {
		t.Errorf("an empty node has %d, a full one %d", empty, full)
	}
	if st := b.PreScore(t.Context(), newState(), pod("q"), nil); !st.IsSkip() {
		t.Errorf("a pod without claims: %v", st)
	}
}
