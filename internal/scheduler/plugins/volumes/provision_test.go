package volumes

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler/framework"
)

func TestWhereAVolumeCanBeMade(t *testing.T) {
	limited := driver(func(s *storagev1.CSIDriverSpec) { s.StorageCapacity = new(true) })
	dynamic := class("dyn", "d", later)
	largest := func(c *storagev1.CSIStorageCapacity, size string) *storagev1.CSIStorageCapacity {
		c.MaximumVolumeSize = new(resource.MustParse(size))
		return c
	}
	hidden := room("r", "dyn", "z1", "9Gi")
	hidden.NodeTopology = nil
	for name, tc := range map[string]struct {
		class    *storagev1.StorageClass
		driver   *storagev1.CSIDriver
		room     []*storagev1.CSIStorageCapacity
		want     string
		capacity int64
	}{
		"no class":        {nil, nil, nil, reasonBind, 0},
		"no provisioner":  {local, nil, nil, reasonBind, 0},
		"anywhere":        {dynamic, nil, nil, "", 0},
		"in its zone":     {class("dyn", "d", later, zonesAllowed("z0", "z1")), nil, nil, "", 0},
		"in another zone": {class("dyn", "d", later, zonesAllowed("z0")), nil, nil, reasonBind, 0},
		"in no zone": {class("dyn", "d", later,
			func(c *storagev1.StorageClass) { c.AllowedTopologies = []v1.TopologySelectorTerm{{}} }), nil, nil, reasonBind, 0},
		"room does not count": {dynamic, driver(nil), nil, "", 0},
		"no room":             {dynamic, limited, nil, reasonSpace, 0},
		"room": {dynamic, limited, []*storagev1.CSIStorageCapacity{room("r", "dyn", "z1", "2Gi")}, "",
			2 << 30},
		"the most of it": {dynamic, limited,
			[]*storagev1.CSIStorageCapacity{room("r", "dyn", "z1", "2Gi"), room("s", "dyn", "z1", "3Gi")}, "", 3 << 30},
		"too little": {dynamic, limited, []*storagev1.CSIStorageCapacity{room("r", "dyn", "z1", "1000Mi")},
			reasonSpace, 0},
		"elsewhere": {dynamic, limited, []*storagev1.CSIStorageCapacity{room("r", "dyn", "z2", "2Gi")},
			reasonSpace, 0},
		"of another class": {dynamic, limited, []*storagev1.CSIStorageCapacity{room("r", "x", "z1", "2Gi")},
			reasonSpace, 0},
		"that nobody reaches": {dynamic, limited, []*storagev1.CSIStorageCapacity{hidden}, reasonSpace, 0},
		"for small volumes": {dynamic, limited,
			[]*storagev1.CSIStorageCapacity{largest(room("r", "dyn", "z1", "9Gi"), "512Mi")}, reasonSpace, 0},
		"for volumes of that size": {dynamic, limited,
			[]*storagev1.CSIStorageCapacity{largest(room("r", "dyn", "z1", "512Mi"), "1Gi")}, "", 512 << 20},
	} {
		p := newProvision(claim("c", ofClass("dyn")), tc.class, tc.driver, tc.room)
		capacity, why := p.on(labels.Set(node("n1", v1.LabelTopologyZone, "z1").Labels))
		if why != tc.want || capacity != tc.capacity {
			t.Errorf("%s: %d, %q; want %d, %q", name, capacity, why, tc.capacity, tc.want)
		}
	}
}

func TestScores(t *testing.T) {
	free, err := framework.NewShape([]configv1.UtilizationShapePoint{{Utilization: 0, Score: 10},
		{Utilization: 100, Score: 0}})
	if err != nil {
		t.Fatal(err)
	}
	other := func(p *v1.PersistentVolume) { p.Spec.StorageClassName = "other" }
	for name, tc := range map[string]struct {
		plan plan
		want int64
	}{
		"nothing":   {plan{}, 0},
		"all of it": {plan{bind: []binding{{claim("c"), pv("a")}}}, 0},
		"a quarter": {plan{bind: []binding{{claim("c"), pv("a", sized("4Gi"))}}}, 75},
		"of two":    {plan{bind: []binding{{claim("c"), pv("a")}, {claim("d"), pv("b", sized("3Gi"))}}}, 50},
		"of two classes": {plan{bind: []binding{{claim("c"), pv("a")}, {claim("d"), pv("b", sized("4Gi"), other)}}},
			38},
		"of room":         {plan{provision: []provisioning{{claim("c"), 10 << 30}}}, 90},
		"twice of it":     {plan{provision: []provisioning{{claim("c"), 10 << 30}, {claim("d"), 10 << 30}}}, 80},
		"of unknown room": {plan{provision: []provisioning{{claim("c"), 0}}}, 0},
		"volumes go over room": {plan{bind: []binding{{claim("c"), pv("a")}},
			provision: []provisioning{{claim("d"), 10 << 30}}}, 0},
	} {
		if got := tc.plan.score(free); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
