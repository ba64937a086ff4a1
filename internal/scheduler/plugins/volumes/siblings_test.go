package volumes

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

func plugin(t *testing.T, pl fwk.Plugin, err error) fwk.PreFilterPlugin {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	p, ok := pl.(fwk.PreFilterPlugin)
	if !ok {
		t.Fatalf("got a %T", pl)
	}
	return p
}

func gce(name string, readOnly bool) v1.VolumeSource {
	return v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: readOnly}}
}

func ebs(id string) v1.VolumeSource {
	return v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: true}}
}

func iscsi(iqn string, readOnly bool) v1.VolumeSource {
	return v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{IQN: iqn, ReadOnly: readOnly}}
}

func rbd(image string, readOnly bool, monitors ...string) v1.VolumeSource {
	return v1.VolumeSource{RBD: &v1.RBDVolumeSource{RBDImage: image, RBDPool: "p", CephMonitors: monitors,
		ReadOnly: readOnly}}
}

func TestRestrictions(t *testing.T) {
	const disk, once = "node(s) had no available disk", "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
	exclusive := claim("c", modes(v1.ReadWriteOncePod))
	elsewhere := func(p *v1.Pod) { p.Namespace = "other" }
	for name, tc := range map[string]struct {
		pod   *v1.Pod
		claim *v1.PersistentVolumeClaim
		other *v1.Pod
		want  string
	}{
		"no volumes":           {pod("p"), claim("c"), pod("o"), ""},
		"a GCE disk":           {pod("p", with(gce("x", false))), nil, pod("o", on("n1"), with(gce("x", false))), disk},
		"of another node":      {pod("p", with(gce("x", false))), nil, pod("o", on("n2"), with(gce("x", false))), ""},
		"another one":          {pod("p", with(gce("x", false))), nil, pod("o", on("n1"), with(gce("y", false))), ""},
		"that one writes":      {pod("p", with(gce("x", true))), nil, pod("o", on("n1"), with(gce("x", false))), disk},
		"that both read":       {pod("p", with(gce("x", true))), nil, pod("o", on("n1"), with(gce("x", true))), ""},
		"EBS, even read":       {pod("p", with(ebs("x"))), nil, pod("o", on("n1"), with(ebs("x"))), disk},
		"another EBS":          {pod("p", with(ebs("x"))), nil, pod("o", on("n1"), with(ebs("y"))), ""},
		"ISCSI":                {pod("p", with(iscsi("x", false))), nil, pod("o", on("n1"), with(iscsi("x", true))), disk},
		"another target":       {pod("p", with(iscsi("x", false))), nil, pod("o", on("n1"), with(iscsi("y", false))), ""},
		"ISCSI that both read": {pod("p", with(iscsi("x", true))), nil, pod("o", on("n1"), with(iscsi("x", true))), ""},
		"RBD": {pod("p", with(rbd("x", false, "a", "b"))), nil,
			pod("o", on("n1"), with(rbd("x", false, "b"))), disk},
		"RBD of other monitors": {pod("p", with(rbd("x", false, "a"))), nil,
			pod("o", on("n1"), with(rbd("x", false, "b"))), ""},
		"another image": {pod("p", with(rbd("x", false, "a"))), nil,
			pod("o", on("n1"), with(rbd("y", false, "a"))), ""},
		"RBD that both read": {pod("p", with(rbd("x", true, "a"))), nil, pod("o", on("n1"), with(rbd("x", true, "a"))),
			""},
		"different disks":      {pod("p", with(ebs("x"))), nil, pod("o", on("n1"), with(gce("x", false))), ""},
		"no such claim":        {pod("p", using("c")), nil, pod("o"), `!persistentvolumeclaim "c" not found`},
		"a claim for many":     {pod("p", using("c")), claim("c"), pod("o", on("n1"), using("c")), ""},
		"a claim for one":      {pod("p", using("c")), exclusive, pod("o", on("n1"), using("c")), once},
		"on any node":          {pod("p", using("c")), exclusive, pod("o", on("n2"), using("c")), once},
		"that nobody uses":     {pod("p", using("c")), exclusive, pod("o", on("n2"), using("d")), ""},
		"of another namespace": {pod("p", using("c")), exclusive, pod("o", on("n2"), elsewhere, using("c")), ""},
	} {
		w := newWorld(t)
		pl, err := NewRestrictions(w)
		r := plugin(t, pl, err)
		if tc.claim != nil {
			w.set(tc.claim)
		}
		var pods []*v1.Pod
		if tc.other.Spec.NodeName != "" {
			pods = append(pods, tc.other)
		}
		w.snap([]*v1.Node{node("n1"), node("n2")}, pods...)
		if got := ask(t, r, newState(), tc.pod, w.info("n1")); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// Preemption takes the claim from its user, and only if that is the last one.
func TestPreemptionFreesAClaimForOnePod(t *testing.T) {
	w := newWorld(t, claim("c", modes(v1.ReadWriteOncePod)))
	pl, err := NewRestrictions(w)
	r := plugin(t, pl, err)
	elsewhere := func(p *v1.Pod) { p.Namespace = "other" }
	users := []*v1.Pod{pod("o", on("n1"), using("c")), pod("q", on("n2"), using("c")),
		pod("x", on("n1"), elsewhere, using("c"))}
	w.snap([]*v1.Node{node("n1"), node("n2")}, users...)
	state, p := newState(), pod("p", using("c"))
	if ask(t, r, state, p, w.info("n1")) == "" {
		t.Fatal("it is free")
	}
	free := func() bool {
		f, _ := r.(fwk.FilterPlugin)
		return f.Filter(t.Context(), state, p, w.info("n1")).IsSuccess()
	}
	before := state.Clone()
	for i, want := range []bool{false, true, true} {
		info, err := framework.NewPodInfo(users[i])
		if err != nil {
			t.Fatal(err)
		}
		r.PreFilterExtensions().RemovePod(t.Context(), state, p, info, w.info("n1"))
		if free() != want {
			t.Errorf("without %s: %t", users[i].Name, !want)
		}
	}
	info, err := framework.NewPodInfo(users[0])
	if err != nil {
		t.Fatal(err)
	}
	r.PreFilterExtensions().AddPod(t.Context(), state, p, info, w.info("n1"))
	if free() {
		t.Error("it is free although its user came back")
	}
	if s, st := framework.ReadState[*restrictionsState](before, restrictionsKey); !st.IsSuccess() || s.used != 2 {
		t.Error("a clone of the state has changed")
	}
}

func TestZones(t *testing.T) {
	const no = "!node(s) had no available volume zone"
	zone, region, betaZone, betaRegion := v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion
	claimed := func(change ...func(*v1.PersistentVolume)) []any {
		return []any{claim("c", has("v")), pv("v", change...)}
	}
	mode := class("odd", "d", later)
	mode.VolumeBindingMode = nil
	for name, tc := range map[string]struct {
		objs []any
		node *v1.Node
		want string
	}{
		"no such claim":  {nil, node("n1"), `!persistentvolumeclaim "c" not found`},
		"no such volume": {[]any{claim("c", has("v"))}, node("n1"), `!persistentvolume "v" not found`},
		"bound later":    {[]any{claim("c"), local}, node("n1", zone, "z1"), ""},
		"no class": {[]any{claim("c", ofClass(""))}, node("n1"),
			"!PersistentVolumeClaim had no pv name and storageClass name"},
		"no such class": {[]any{claim("c")}, node("n1"), `!storageclass.storage.k8s.io "local" not found`},
		"a class of no mode": {[]any{claim("c", ofClass("odd")), mode}, node("n1"),
			`!VolumeBindingMode not set for StorageClass "odd"`},
		"bound now": {[]any{claim("c", ofClass("now")), class("now", "d", storagev1.VolumeBindingImmediate)},
			node("n1"), "!PersistentVolume had no name"},
		"no labels":           {claimed(), node("n1", zone, "z1"), ""},
		"the zone":            {claimed(zonedAt(zone, "z1")), node("n1", zone, "z1"), ""},
		"another zone":        {claimed(zonedAt(zone, "z1")), node("n1", zone, "z2"), no},
		"one of its zones":    {claimed(zonedAt(zone, "z0__z1")), node("n1", zone, "z1"), ""},
		"none of its zones":   {claimed(zonedAt(zone, "z0__z2")), node("n1", zone, "z1"), no},
		"a label that is odd": {claimed(zonedAt(zone, "z0__")), node("n1", zone, "z1"), ""},
		"another region": {claimed(zonedAt(zone, "z1"), zonedAt(region, "r1")),
			node("n1", zone, "z1", region, "r2"), no},
		"no region":            {claimed(zonedAt(region, "r1")), node("n1", zone, "z1"), no},
		"no labels at all":     {claimed(zonedAt(region, "r1")), node("n1"), ""},
		"old label, new node":  {claimed(zonedAt(betaZone, "z1")), node("n1", zone, "z1"), ""},
		"old label, not there": {claimed(zonedAt(betaRegion, "r1")), node("n1", region, "r2"), no},
		"old label, old node":  {claimed(zonedAt(betaZone, "z1")), node("n1", betaZone, "z1"), ""},
		"new label, old node":  {claimed(zonedAt(zone, "z1")), node("n1", betaZone, "z1"), no},
	} {
		w := newWorld(t, tc.objs...)
		pl, err := NewZone(w)
		z := plugin(t, pl, err)
		w.snap([]*v1.Node{tc.node})
		if got := ask(t, z, newState(), pod("p", using("c")), w.info("n1")); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestLimits(t *testing.T) {
	const full = "node(s) exceed max volume count"
	dynamic := class("dyn", "d", later)
	prevents := driver(func(s *storagev1.CSIDriverSpec) { s.PreventPodSchedulingIfMissing = new(true) })
	attached := &storagev1.VolumeAttachment{ObjectMeta: meta("va")}
	attached.Spec = storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n1",
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("w")}}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		objs []any
		want string
	}{
		"no claims":           {pod("p"), []any{csiNode(map[string]int32{"d": 0})}, ""},
		"no such claim":       {pod("p", using("x")), nil, `!looking up PVC ns/x: persistentvolumeclaim "x" not found`},
		"no CSINode":          {pod("p", using("c")), nil, ""},
		"no limit":            {pod("p", using("c")), []any{csiNode(map[string]int32{"d": -1})}, ""},
		"room":                {pod("p", using("c")), []any{csiNode(map[string]int32{"d": 2})}, ""},
		"no room":             {pod("p", using("c")), []any{csiNode(map[string]int32{"d": 1})}, full},
		"another driver's":    {pod("p", using("c")), []any{csiNode(map[string]int32{"e": 0})}, ""},
		"it is there already": {pod("p", using("b")), []any{csiNode(map[string]int32{"d": 1})}, ""},
		"the same twice":      {pod("p", using("c", "c2")), []any{csiNode(map[string]int32{"d": 2})}, ""},
		"two":                 {pod("p", using("c", "e")), []any{csiNode(map[string]int32{"d": 2})}, full},
		"to be made":          {pod("p", using("new")), []any{csiNode(map[string]int32{"d": 1})}, full},
		"for the pod": {pod("p", generic),
			[]any{claim("p-a", ofClass("dyn"), ownedBy("p")), csiNode(map[string]int32{"d": 1})}, full},
		"for another pod": {pod("p", generic),
			[]any{claim("p-a", ofClass("dyn")),
				csiNode(map[string]int32{"d": 1})}, "error: PVC ns/p-a was not created for pod ns/p (pod is not owner)"},
		"one is left attached": {pod("p", using("c")),
			[]any{csiNode(map[string]int32{"d": 2}), attached, pv("w", csi("hw"))}, full},
		"one is in use, too": {pod("p", using("c")),
			[]any{csiNode(map[string]int32{"d": 2}), attached, pv("w", csi("hb"))}, ""},
		"a volume not of CSI": {pod("p", using("c")), []any{csiNode(map[string]int32{"d": 2}), attached, pv("w")}, ""},
		"the driver is absent": {pod("p", using("c")), []any{prevents, csiNode(nil)},
			"d CSI driver is not installed on the node"},
		"without a CSINode":   {pod("p", using("c")), []any{prevents}, "d CSI driver is not installed on the node"},
		"the driver is there": {pod("p", using("c")), []any{prevents, csiNode(map[string]int32{"d": -1})}, ""},
		"it does not matter":  {pod("p", using("c")), []any{driver(nil), csiNode(nil)}, ""},
		"in-tree": {pod("p", with(gce("x", false))),
			[]any{csiNode(map[string]int32{"pd.csi.storage.gke.io": 0})}, full},
		"in-tree by a claim": {pod("p", using("g")),
			[]any{claim("g", has("vg")), pv("vg", func(p *v1.PersistentVolume) {
				p.Spec.GCEPersistentDisk = gce("x",
					false).GCEPersistentDisk
			}), csiNode(map[string]int32{"pd.csi.storage.gke.io": 0})}, full},
		"in-tree to be made": {pod("p", using("g")),
			[]any{claim("g", ofClass("pd")), class("pd", "kubernetes.io/gce-pd", later),
				csiNode(map[string]int32{"pd.csi.storage.gke.io": 0})}, full},
	} {
		w := newWorld(t)
		pl, err := NewLimits(w)
		l := plugin(t, pl, err)
		for _, obj := range append(tc.objs, dynamic, claim("b", has("vb")), pv("vb", csi("hb")), claim("c", has("vc")),
			pv("vc", csi("hc")),
			claim("c2", has("vc2")), pv("vc2", csi("hc")), claim("e", has("ve")), pv("ve", csi("he")), claim("new",
				ofClass("dyn"))) {
			w.set(obj)
		}
		w.snap([]*v1.Node{node("n1")}, pod("o", on("n1"), using("b", "gone")))
		if got := ask(t, l, newState(), tc.pod, w.info("n1")); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
