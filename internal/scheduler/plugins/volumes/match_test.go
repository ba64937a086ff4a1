package volumes

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

func TestWhichVolumeAClaimGets(t *testing.T) {
	zone := v1.LabelTopologyZone
	gold := zonedAt("tier", "gold")
	wantsGold := func(c *v1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	}
	block := v1.PersistentVolumeBlock
	for name, tc := range map[string]struct {
		claim *v1.PersistentVolumeClaim
		pvs   []*v1.PersistentVolume
		taken []string
		want  string
	}{
		"none": {claim("c"), nil, nil, ""},
		"the smallest": {claim("c"),
			[]*v1.PersistentVolume{pv("a", sized("3Gi")), pv("b", sized("2Gi")), pv("c", sized("512Mi"))}, nil, "b"},
		"of equal ones the first": {claim("c"), []*v1.PersistentVolume{pv("b"), pv("a")}, nil, "a"},
		"too small":               {claim("c", wants("2Gi")), []*v1.PersistentVolume{pv("a")}, nil, ""},
		"of the node": {claim("c"),
			[]*v1.PersistentVolume{pv("a", atNode("n2")), pv("b", atNode("n1"), sized("5Gi"))}, nil, "b"},
		"of the zone": {claim("c"),
			[]*v1.PersistentVolume{pv("a", at(zone, "z2")), pv("b", at(zone, "z3", "z1"))}, nil, "b"},
		"of the node or zone": {claim("c"),
			[]*v1.PersistentVolume{pv("a", atNode("n1"), sized("3Gi")), pv("b", at(zone, "z1"), sized("2Gi"))}, nil, "b"},
		"of anywhere": {claim("c"),
			[]*v1.PersistentVolume{pv("a", atNode("n1"), sized("3Gi")), pv("b", sized("2Gi"))}, nil, "b"},
		"in one of two terms": {claim("c"), []*v1.PersistentVolume{pv("a", atNode("n7"), at(zone, "z1"))}, nil, "a"},
		"by another operator": {claim("c"), []*v1.PersistentVolume{pv("a", func(p *v1.PersistentVolume) {
			at(zone)(p)
			p.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = v1.NodeSelectorOpExists
		})}, nil, "a"},
		"taken": {claim("c"), []*v1.PersistentVolume{pv("a"), pv("b", sized("2Gi"))}, []string{"a"}, "b"},
		"selected": {claim("c", wantsGold), []*v1.PersistentVolume{pv("a"), pv("b", gold, sized("9Gi"))}, nil,
			"b"},
		"not available": {claim("c"), []*v1.PersistentVolume{pv("a",
			func(p *v1.PersistentVolume) { p.Status.Phase = v1.VolumeReleased })}, nil, ""},
		"another's":          {claim("c"), []*v1.PersistentVolume{pv("a", kept("other", ""))}, nil, ""},
		"an older claim's":   {claim("c"), []*v1.PersistentVolume{pv("a", kept("c", "old"))}, nil, ""},
		"kept by its name":   {claim("c"), []*v1.PersistentVolume{pv("a"), pv("b", kept("c", ""), sized("9Gi"))}, nil, "b"},
		"bound to it":        {claim("c"), []*v1.PersistentVolume{pv("a"), pv("b", kept("c", "c"), sized("9Gi"))}, nil, "b"},
		"kept, out of reach": {claim("c"), []*v1.PersistentVolume{pv("a"), pv("b", kept("c", ""), atNode("n2"))}, nil, ""},
		"another mode": {claim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }),
			[]*v1.PersistentVolume{pv("a")}, nil, ""},
		"another access": {claim("c", modes(v1.ReadWriteMany)), []*v1.PersistentVolume{pv("a")}, nil, ""},
		"other attributes": {claim("c",
			func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = new("fast") }), []*v1.PersistentVolume{pv("a")}, nil, ""},
		"going": {claim("c"), []*v1.PersistentVolume{pv("a",
			func(p *v1.PersistentVolume) { p.DeletionTimestamp = new(metav1.Now()) })}, nil, ""},
	} {
		c, err := newCandidates(tc.claim, tc.pvs)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := ""
		if pv := c.find(node("n1", zone, "z1").Labels, sets.New(tc.taken...)); pv != nil {
			got = pv.Name
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// A node looks at the volumes that it may reach, and no others: with 10,000 local volumes, every node has its few.
func BenchmarkFindAmongLocalVolumes(b *testing.B) {
	var pvs []*v1.PersistentVolume
	for i := range 10000 {
		pvs = append(pvs, pv(fmt.Sprintf("pv%d", i), atNode(fmt.Sprintf("n%d", i%1000)), sized(fmt.Sprintf("%dGi", 1+i%7))))
	}
	c := claim("c")
	b.Run("candidates", func(b *testing.B) {
		for b.Loop() {
			if _, err := newCandidates(c, pvs); err != nil {
				b.Fatal(err)
			}
		}
	})
	all, err := newCandidates(c, pvs)
	if err != nil {
		b.Fatal(err)
	}
	n := node("n77")
	b.Run("node", func(b *testing.B) {
		for b.Loop() {
			if all.find(n.Labels, nil) == nil {
				b.Fatal("none")
			}
		}
	})
}
