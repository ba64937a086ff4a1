package persistentvolume

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

func same(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

// words puts a plan for a volume in words: the phase, what it is given up for, whom it wakes, and the event.
func (p volumePlan) words(pv *v1.PersistentVolume) string {
	var out []string
	if p.ask {
		out = append(out, "asks")
	}
	if w := p.write; w != nil {
		switch {
		case w.Spec.ClaimRef == nil && pv.Spec.ClaimRef != nil:
			out = append(out, "free")
		case w.Spec.ClaimRef != nil && w.Spec.ClaimRef.UID != pv.Spec.ClaimRef.UID:
			out = append(out, "kept for "+w.Spec.ClaimRef.Name)
		}
		if !slices.Equal(w.Finalizers, pv.Finalizers) {
			out = append(out, "finalizers "+strings.Join(w.Finalizers, ","))
		}
		if is := w.Annotations[volume.AnnMigratedTo]; is != pv.Annotations[volume.AnnMigratedTo] {
			out = append(out, "migrated to "+is)
		}
	}
	if p.phase != "" {
		out = append(out, string(p.phase))
	}
	if p.wake != "" {
		out = append(out, "wakes "+p.wake)
	}
	if p.say.reason != "" {
		out = append(out, p.say.kind+" "+p.say.reason+" "+p.say.message)
	}
	return strings.Join(out, "; ")
}

func TestWhatBecomesOfAVolume(t *testing.T) {
	const (
		del, retain, recycle = v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimRecycle
		failed               = "Failed; Warning "
		undeleted            = failed + `VolumeFailedDelete error getting deleter volume plugin for volume "v": no deletable volume plugin matched`
	)
	ebs := madeBy("kubernetes.io/aws-ebs")
	finalized := func(f ...string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Finalizers = f }
	}
	local := func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/x"}}
	}
	for name, tc := range map[string]struct {
		f    volumeFacts
		want string
	}{
		"new":                     {volumeFacts{volume: newVolume("v", is(v1.VolumePending))}, "Available"},
		"kept for a name":         {volumeFacts{volume: newVolume("v", is(v1.VolumePending), keptFor("c", ""))}, "Available"},
		"begun":                   {volumeFacts{volume: newVolume("v", isOf("c")), claim: newClaim("c")}, "wakes ns/c"},
		"made for a claim":        {volumeFacts{volume: newVolume("v", is(v1.VolumePending), keptFor("c", "c"), madeBy(driver)), claim: newClaim("c")}, "wakes ns/c"},
		"of another mode":         {volumeFacts{volume: newVolume("v", block, keptFor("c", "c")), claim: newClaim("c")}, `Warning VolumeMismatch Cannot bind PersistentVolume to requested PersistentVolumeClaim "c" due to incompatible volumeMode.`},
		"bound":                   {volumeFacts{volume: newVolume("v", isOf("c")), claim: newClaim("c", has("v"))}, "Bound"},
		"bound again":             {volumeFacts{volume: newVolume("v", isOf("c"), is(v1.VolumeReleased)), claim: newClaim("c", has("v"))}, "Bound"},
		"its claim has another":   {volumeFacts{volume: newVolume("v", isOf("c")), claim: newClaim("c", has("w"))}, "free; Available"},
		"kept, and not used":      {volumeFacts{volume: newVolume("v", keptFor("c", "c"), is(v1.VolumeBound)), claim: newClaim("c", has("w"))}, "kept for c; Available"},
		"made, and not used":      {volumeFacts{volume: newVolume("v", isOf("c"), csi, madeBy(driver), policy(del)), claim: newClaim("c", has("w"))}, "Released"},
		"made, retained":          {volumeFacts{volume: newVolume("v", isOf("c"), csi, madeBy(driver)), claim: newClaim("c", has("w"))}, "free; Available"},
		"taken away from a claim": {volumeFacts{volume: newVolume("v", is(v1.VolumeBound)), holder: newClaim("c", has("v"))}, "wakes ns/c"},
		"its UID was taken away":  {volumeFacts{volume: newVolume("v", is(v1.VolumeBound), keptFor("c", "")), claim: newClaim("c", has("v")), holder: newClaim("c", has("v"))}, "wakes ns/c"},

		"its claim seems to be gone":    {volumeFacts{volume: newVolume("v", isOf("c"))}, "asks"},
		"its claim seems to be another": {volumeFacts{volume: newVolume("v", keptFor("c", "old")), claim: newClaim("c")}, "asks"},
		"its claim is gone":             {volumeFacts{volume: newVolume("v", isOf("c")), sure: true}, "Released"},
		"its claim is another":          {volumeFacts{volume: newVolume("v", keptFor("c", "old")), claim: newClaim("c"), sure: true}, "Released"},
		"released before":               {volumeFacts{volume: newVolume("v", isOf("c"), is(v1.VolumeReleased))}, ""},
		"released, for a driver":        {volumeFacts{volume: newVolume("v", isOf("c"), csi, policy(del)), sure: true}, "Released"},
		"released, for a provisioner":   {volumeFacts{volume: newVolume("v", isOf("c"), local, madeBy("local-volume-provisioner"), policy(del)), sure: true}, "Released"},
		"nobody deletes it":             {volumeFacts{volume: newVolume("v", isOf("c"), policy(del)), sure: true}, undeleted},
		"nobody deletes a folder":       {volumeFacts{volume: newVolume("v", isOf("c"), local, policy(del)), sure: true}, strings.Replace(undeleted, "deletable ", "", 1)},
		"that has failed before":        {volumeFacts{volume: newVolume("v", isOf("c"), policy(del), is(v1.VolumeFailed))}, ""},
		"the policy changed later":      {volumeFacts{volume: newVolume("v", isOf("c"), policy(del), is(v1.VolumeReleased))}, undeleted},
		"nobody recycles it":            {volumeFacts{volume: newVolume("v", isOf("c"), policy(recycle)), sure: true}, failed + "VolumeFailedRecycle No recycler plugin found for the volume!"},
		"pods use it still": {volumeFacts{volume: newVolume("v", isOf("c"), policy(recycle)), sure: true, users: []string{"ns/q", "ns/p"}},
			"Released; Normal VolumeFailedRecycle Volume is used by pods: ns/p,ns/q"},
		"pods use a claim of that name": {volumeFacts{volume: newVolume("v", keptFor("c", "old"), policy(recycle)), claim: newClaim("c"), sure: true, users: []string{"ns/p"}},
			failed + "VolumeFailedRecycle No recycler plugin found for the volume!"},
		"an unknown policy": {volumeFacts{volume: newVolume("v", isOf("c"), policy("Sell")), sure: true}, failed + "VolumeUnknownReclaimPolicy Volume has unrecognized PersistentVolumeReclaimPolicy"},

		"of a kind that a driver has taken over": {volumeFacts{volume: newVolume("v", isOf("c"), ebs, policy(del), finalized("a", volume.PVDeletionInTreeProtectionFinalizer)), sure: true}, "finalizers a; migrated to ebs.csi.aws.com; Released"},
		"of a kind that nobody has taken over": {volumeFacts{volume: newVolume("v", isOf("c"), madeBy("kubernetes.io/x"), policy(del), finalized("a", volume.PVDeletionProtectionFinalizer)), sure: true},
			"finalizers a,kubernetes.io/pv-controller; " + failed + "VolumeFailedDelete no volume plugin matched name: kubernetes.io/x"},
		"of such a kind, retained": {volumeFacts{volume: newVolume("v", isOf("c"), madeBy("kubernetes.io/x"), policy(retain), finalized("kubernetes.io/pv-controller")), claim: newClaim("c", has("v"))},
			"finalizers ; Bound"},
		"of a driver, its finalizer stays": {volumeFacts{volume: newVolume("v", isOf("c"), csi, madeBy(driver), policy(del), finalized(volume.PVDeletionProtectionFinalizer)), claim: newClaim("c", has("v"))}, "Bound"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.f.volume.DeepCopy()
			if got := decideVolume(&tc.f).words(tc.f.volume); got != tc.want {
				t.Errorf("%q\nwant %q", got, tc.want)
			}
			if !same(before, tc.f.volume) {
				t.Errorf("the informer's object was changed: %v", tc.f.volume)
			}
		})
	}
}

func TestAVolumeThatIsGivenUpHasNoMarkLeft(t *testing.T) {
	pv := newVolume("v", isOf("c"))
	if got := givenUp(pv, nil); metav1.HasAnnotation(got.ObjectMeta, volume.AnnBoundByController) || got.Spec.ClaimRef != nil {
		t.Errorf("%+v", got)
	}
}

func TestAPromiseEndsWithTheVersionOfItsVolume(t *testing.T) {
	p, v := newPromises(), newVolume("v")
	if !p.take(v, "a") || p.take(v, "b") || !p.take(v, "a") {
		t.Error("one claim gets it, and gets it again")
	}
	p.saw("v", v.ResourceVersion)
	if p.take(v, "b") {
		t.Error("nothing was heard that is new")
	}
	next := newVolume("v")
	next.ResourceVersion = "2"
	if !p.take(next, "b") {
		t.Error("what was promised was another version")
	}
	p.release("a")
	if p.take(next, "a") {
		t.Error("that is not the promise of a")
	}
	if w := newVolume("w"); !p.take(w, "b") || !p.take(next, "a") {
		t.Error("a claim has one promise at most")
	}
	p.release("a")
	p.release("b")
	if len(p.byName)+len(p.byClaim) != 0 {
		t.Errorf("left: %v, %v", p.byName, p.byClaim)
	}
}
