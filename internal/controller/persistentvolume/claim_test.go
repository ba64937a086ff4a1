package persistentvolume

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

const (
	rwo, rox, rwx, rwop = v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod
	driver              = "example.com/maker"
)

// say puts a plan for a claim in words: what is bound, the phase, the class and the provisioner that it gets, and the
// event.
func (p claimPlan) words(claim *v1.PersistentVolumeClaim) string {
	var out []string
	if p.ask {
		out = append(out, "asks")
	}
	if p.volume != nil {
		out = append(out, "gets "+p.volume.Name)
	}
	if p.phase != "" {
		out = append(out, string(p.phase))
	}
	if p.write != nil && p.retroactive {
		out = append(out, "class "+*p.write.Spec.StorageClassName)
	}
	if p.write != nil && !p.retroactive {
		for _, a := range []string{volume.AnnStorageProvisioner, volume.AnnMigratedTo} {
			if is := p.write.Annotations[a]; is != claim.Annotations[a] {
				out = append(out, a[strings.Index(a, "/")+1:]+"="+is)
			}
		}
	}
	if p.say.reason != "" {
		out = append(out, p.say.kind+" "+p.say.reason+" "+p.say.message)
	}
	return strings.Join(out, "; ")
}

func TestWhatAClaimGets(t *testing.T) {
	selects := func(c *v1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"gold", "silver"}},
		}}
	}
	const none = "Pending; Normal FailedBinding no persistent volumes available for this claim and no storage class is set"
	const asked = "; Normal ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'example.com/maker' or manually by the system administrator. " +
		"If volume creation is delayed, please verify that the provisioner is running and correctly registered."
	const firstUse = "Pending; Normal WaitForFirstConsumer waiting for first consumer to be created before binding"
	type volumes = []*v1.PersistentVolume
	late := newClass("late", driver, waits)
	for name, tc := range map[string]struct {
		f    claimFacts
		want string
	}{
		"nothing there":           {claimFacts{claim: newClaim("c")}, none},
		"one that fits":           {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v")}}, "gets v; Bound"},
		"the smallest":            {claimFacts{claim: newClaim("c"), free: volumes{newVolume("big", of("9")), newVolume("v", of("2")), newVolume("w", of("3"))}}, "gets v; Bound"},
		"too small":               {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v", of("0.5"))}}, none},
		"fewer modes before size": {claimFacts{claim: newClaim("c"), free: volumes{newVolume("many", of("1", rwo, rox, rwx)), newVolume("v", of("2", rwo))}}, "gets v; Bound"},
		"a mode is missing":       {claimFacts{claim: newClaim("c", modes(rwo, rwx)), free: volumes{newVolume("v", of("1", rwo, rox))}}, none},
		"one pod only":            {claimFacts{claim: newClaim("c", modes(rwop)), free: volumes{newVolume("v"), newVolume("w", of("1", rwop))}}, "gets w; Bound"},
		"another class":           {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v", inClass("fast"))}}, none},
		"the class of the volume": {claimFacts{claim: newClaim("c", ofNamedClass("fast")), free: volumes{newVolume("v", inClass("fast"))}}, "gets v; Bound"},
		"another mode of volume":  {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v", block)}}, none},
		"other attributes":        {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v", inAttributes)}}, none},
		"selected":                {claimFacts{claim: newClaim("c", selects), free: volumes{newVolume("v"), newVolume("w", of("5"), labelled)}}, "gets w; Bound"},
		"it is being deleted":     {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v", volumeEnds)}}, none},
		"not available yet":       {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v", is(v1.VolumePending))}}, none},
		"kept for it":             {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v"), newVolume("w", of("5"), keptFor("c", ""))}}, "gets w; Bound"},
		"kept for it, of another class": {claimFacts{claim: newClaim("c"), free: volumes{newVolume("w", inClass("fast"), keptFor("c", ""))}},
			"gets w; Bound"},
		"kept for it, too small":       {claimFacts{claim: newClaim("c"), free: volumes{newVolume("w", of("0.5"), keptFor("c", ""))}}, none},
		"kept for one of its name":     {claimFacts{claim: newClaim("c"), free: volumes{newVolume("w", keptFor("c", "old"))}}, none},
		"begun, and interrupted":       {claimFacts{claim: newClaim("c"), free: volumes{newVolume("v"), newVolume("w", of("5"), keptFor("c", "")), newVolume("x", of("9"), isOf("c"))}}, "gets x; Bound"},
		"the claim is being deleted":   {claimFacts{claim: newClaim("c", claimEnds), free: volumes{newVolume("v")}}, ""},
		"a default class came later":   {claimFacts{claim: newClaim("c", withoutClass), standard: newClass("std", driver)}, "class std"},
		"a volume before that class":   {claimFacts{claim: newClaim("c", withoutClass), standard: newClass("std", driver), free: volumes{newVolume("v")}}, "gets v; Bound"},
		"no class is wanted":           {claimFacts{claim: newClaim("c"), standard: newClass("std", driver)}, none},
		"neither class nor default":    {claimFacts{claim: newClaim("c", withoutClass)}, none},
		"the class does not exist":     {claimFacts{claim: newClaim("c", ofNamedClass("x"))}, `Pending; Warning ProvisioningFailed storageclass.storage.k8s.io "x" not found`},
		"a provisioner is asked":       {claimFacts{claim: newClaim("c", ofNamedClass("x")), class: newClass("x", driver)}, "Pending; storage-provisioner=" + driver + asked},
		"a provisioner was asked":      {claimFacts{claim: newClaim("c", ofNamedClass("x"), noted(volume.AnnStorageProvisioner, driver)), class: newClass("x", driver)}, "Pending" + asked},
		"nobody makes volumes":         {claimFacts{claim: newClaim("c", ofNamedClass("x")), class: newClass("x", volume.NotSupportedProvisioner)}, "Pending; Warning ProvisioningFailed no volume plugin matched name: kubernetes.io/no-provisioner"},
		"its first pod decides":        {claimFacts{claim: newClaim("c", ofNamedClass("late")), class: late}, firstUse},
		"and volumes do not matter":    {claimFacts{claim: newClaim("c", ofNamedClass("late")), class: late, free: volumes{newVolume("v", inClass("late"))}}, firstUse},
		"its pod waits":                {claimFacts{claim: newClaim("c", ofNamedClass("late")), class: late, waiting: []string{"p"}}, "Pending; Normal WaitForPodScheduled waiting for pod p to be scheduled"},
		"its pods wait":                {claimFacts{claim: newClaim("c", ofNamedClass("late")), class: late, waiting: []string{"q", "p"}}, "Pending; Normal WaitForPodScheduled waiting for pods p,q to be scheduled"},
		"the scheduler found a volume": {claimFacts{claim: newClaim("c", ofNamedClass("late")), class: late, free: volumes{newVolume("v", inClass("late"), isOf("c"))}}, "gets v; Bound"},
		"the scheduler found a node": {claimFacts{claim: newClaim("c", ofNamedClass("late"), noted(volume.AnnSelectedNode, "n")), class: late},
			"Pending; storage-provisioner=" + driver + asked},
		"the volume that it names":          {claimFacts{claim: newClaim("c", naming), named: newVolume("v")}, "gets v; Bound"},
		"it names one that is not there":    {claimFacts{claim: newClaim("c", naming)}, "Pending"},
		"it names another's":                {claimFacts{claim: newClaim("c", naming), named: newVolume("v", isOf("d"))}, `Pending; Warning FailedBinding volume "v" already bound to a different claim.`},
		"it names one of its predecessor's": {claimFacts{claim: newClaim("c", naming), named: newVolume("v", keptFor("c", "old"))}, `Pending; Warning FailedBinding volume "v" already bound to a different claim.`},
		"it names one that was taken away from another": {claimFacts{claim: newClaim("c", naming), named: newVolume("v"), holder: newClaim("d", has("v"))},
			`Pending; Warning FailedBinding volume "v" already bound to a different claim.`},
		"it names one that is kept for it": {claimFacts{claim: newClaim("c", naming), named: newVolume("v", of("0.5"), keptFor("c", ""))}, "gets v; Bound"},
		"it names one too small":           {claimFacts{claim: newClaim("c", naming), named: newVolume("v", of("0.5"))}, `Pending; Warning VolumeMismatch Cannot bind to requested volume "v": requested PV is too small`},
		"it names one of another class":    {claimFacts{claim: newClaim("c", naming), named: newVolume("v", inClass("x"))}, `Pending; Warning VolumeMismatch Cannot bind to requested volume "v": storageClassName does not match`},
		"it names one of other attributes": {claimFacts{claim: newClaim("c", naming), named: newVolume("v", inAttributes)}, `Pending; Warning VolumeMismatch Cannot bind to requested volume "v": volumeAttributesClassName does not match`},
		"it names one of another mode":     {claimFacts{claim: newClaim("c", naming), named: newVolume("v", block)}, `Pending; Warning VolumeMismatch Cannot bind to requested volume "v": incompatible volumeMode`},
		"it names one of other access":     {claimFacts{claim: newClaim("c", naming, modes(rwx)), named: newVolume("v")}, `Pending; Warning VolumeMismatch Cannot bind to requested volume "v": incompatible accessMode`},
		"it names one that is being deleted": {claimFacts{claim: newClaim("c", naming), named: newVolume("v", volumeEnds)},
			`Pending; Warning VolumeMismatch Cannot bind to requested volume "v": the volume is marked for deletion "v"`},

		"bound":                          {claimFacts{claim: newClaim("c", has("v")), named: newVolume("v", isOf("c"))}, "gets v; Bound"},
		"bound, and being deleted":       {claimFacts{claim: newClaim("c", has("v"), claimEnds), named: newVolume("v", isOf("c"))}, "gets v; Bound"},
		"the volume was taken away":      {claimFacts{claim: newClaim("c", has("v")), named: newVolume("v")}, "gets v; Bound"},
		"the UID was taken away":         {claimFacts{claim: newClaim("c", has("v")), named: newVolume("v", keptFor("c", ""))}, "gets v; Bound"},
		"the volume seems to be gone":    {claimFacts{claim: newClaim("c", has("v"))}, "asks"},
		"the volume is gone":             {claimFacts{claim: newClaim("c", has("v")), sure: true}, "Lost; Warning ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!"},
		"it was gone before":             {claimFacts{claim: newClaim("c", has("v"), claimIsLost)}, ""},
		"it came back":                   {claimFacts{claim: newClaim("c", has("v"), claimIsLost), named: newVolume("v")}, "gets v; Bound"},
		"the name of the volume is gone": {claimFacts{claim: newClaim("c", has(""))}, "Lost; Warning ClaimLost Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"},
		"it seems to be another's":       {claimFacts{claim: newClaim("c", has("v")), named: newVolume("v", isOf("d"))}, "asks"},
		"it is another's":                {claimFacts{claim: newClaim("c", has("v")), named: newVolume("v", isOf("d")), sure: true}, "Lost; Warning ClaimMisbound Two claims are bound to the same volume, this one is bound incorrectly"},
		"it was its predecessor's":       {claimFacts{claim: newClaim("c", has("v")), named: newVolume("v", keptFor("c", "old")), sure: true}, "Lost; Warning ClaimMisbound Two claims are bound to the same volume, this one is bound incorrectly"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.f.claim.DeepCopy()
			p, err := decideClaim(&tc.f)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.words(tc.f.claim); got != tc.want {
				t.Errorf("%q\nwant %q", got, tc.want)
			}
			if !same(before, tc.f.claim) {
				t.Errorf("the informer's object was changed: %v", tc.f.claim)
			}
		})
	}
}

func TestProvisionersOfKubernetesItself(t *testing.T) {
	for in, want := range map[string]string{
		"kubernetes.io/aws-ebs":         "ebs.csi.aws.com",
		"kubernetes.io/gce-pd":          "pd.csi.storage.gke.io",
		"kubernetes.io/azure-file":      "file.csi.azure.com",
		"kubernetes.io/portworx-volume": "pxd.portworx.com",
		"kubernetes.io/glusterfs":       "no volume plugin matched name: kubernetes.io/glusterfs",
		driver:                          driver,
	} {
		name, why := provisioner(newClass("x", in))
		if name+why != want {
			t.Errorf("%s: %q, %q; want %q", in, name, why, want)
		}
	}
}

// A claim that was asked for of a kind that a driver has taken over is told of the driver, and one of another kind loses
// the word of an earlier driver.
func TestDriversThatHaveTakenOver(t *testing.T) {
	old := newClaim("c", ofNamedClass("x"), noted(volume.AnnBetaStorageProvisioner, "kubernetes.io/aws-ebs"))
	if got := annotated(old, ""); got == nil || got.Annotations[volume.AnnMigratedTo] != "ebs.csi.aws.com" {
		t.Errorf("%v", got)
	}
	if got := annotated(annotated(old, ""), ""); got != nil {
		t.Errorf("once more: %v", got)
	}
	other := newClaim("c", noted(volume.AnnStorageProvisioner, driver), noted(volume.AnnMigratedTo, "x"))
	if got := annotated(other, ""); got == nil || got.Annotations[volume.AnnMigratedTo] != "" {
		t.Errorf("%v", got)
	}
}

func TestTheStatusOfAClaim(t *testing.T) {
	pv := newVolume("v", of("5", rwo, rwx), inAttributes)
	c := inPhase(newClaim("c"), v1.ClaimBound, pv)
	if s := c.Status; s.Phase != v1.ClaimBound || s.Capacity.Storage().String() != "5Gi" || len(s.AccessModes) != 2 || *s.CurrentVolumeAttributesClassName != "fast" {
		t.Errorf("bound: %+v", s)
	}
	if again := inPhase(c, v1.ClaimBound, pv); again != nil {
		t.Errorf("again: %+v", again.Status)
	}
	grown := pv.DeepCopy()
	of("9", rwo, rwx)(grown)
	grown.Spec.VolumeAttributesClassName = new("slow")
	if later := inPhase(c, v1.ClaimBound, grown); later != nil {
		t.Errorf("the size and the attributes of a bound claim are for others to write: %+v", later.Status)
	}
	lost := inPhase(c, v1.ClaimLost, nil)
	if s := lost.Status; s.Phase != v1.ClaimLost || s.Capacity != nil || s.AccessModes != nil || s.CurrentVolumeAttributesClassName != nil {
		t.Errorf("lost: %+v", s)
	}
	metav1.SetMetaDataAnnotation(&grown.ObjectMeta, sizeBefore, "7Gi")
	if s := inPhase(newClaim("c"), v1.ClaimBound, grown).Status; s.Capacity.Storage().String() != "7Gi" {
		t.Errorf("a volume whose file system has not grown yet: %+v", s)
	}
}

func TestHowAClaimIsBound(t *testing.T) {
	pv := newVolume("v")
	found := boundTo(newClaim("c"), nil, pv)
	if found.Spec.VolumeName != "v" || found.Annotations[volume.AnnBindCompleted] != "yes" || found.Annotations[volume.AnnBoundByController] != "yes" {
		t.Errorf("found by the controller: %+v", found)
	}
	named := boundTo(newClaim("c", naming), nil, pv)
	if _, by := named.Annotations[volume.AnnBoundByController]; by || named.Annotations[volume.AnnBindCompleted] != "yes" {
		t.Errorf("named by the user: %+v", named)
	}
	if again := boundTo(found, nil, pv); again != nil {
		t.Errorf("bound already: %+v", again)
	}
}
