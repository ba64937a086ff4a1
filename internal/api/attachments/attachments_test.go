package attachments

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestNames(t *testing.T) {
	name := VolumeName("csi.example.com", "vol^1/2")
	if name != "kubernetes.io/csi/csi.example.com^vol^1/2" {
		t.Errorf("volume name %q", name)
	}
	if driver, handle, ok := SplitVolumeName(name); !ok || driver != "csi.example.com" || handle != "vol^1/2" {
		t.Errorf("%q, %q, %v", driver, handle, ok)
	}
	for _, other := range []string{"", "kubernetes.io/iscsi/a:b:0", "kubernetes.io/csi/", "kubernetes.io/csi/driver", "kubernetes.io/csi/^h", "kubernetes.io/csi/d^"} {
		if _, _, ok := SplitVolumeName(v1.UniqueVolumeName(other)); ok {
			t.Errorf("%q is taken for the name of a CSI volume", other)
		}
	}
	// The value is what `printf 'h''d''n' | sha256sum` says.
	if got := Name("d", "h", "n"); got != "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d" {
		t.Errorf("name %q", got)
	}
	for other, want := range map[string]bool{Name("a", "b", "c"): true, "csi-12": false, "my-attachment": false, "csi-" + string(make([]byte, 64)): false} {
		if IsName(other) != want {
			t.Errorf("%q: %v", other, !want)
		}
	}
}

// The names are those that upstream's controller writes: a kubelet of upstream's looks for them.
func TestNamesOfVolumesThatNodesAttach(t *testing.T) {
	iscsi := &v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1:3260", IQN: "iqn.2001-04.com.example:disk", Lun: 2}}
	wwns := &v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1", "50060e801049cfd2"}, Lun: new(int32)}}
	wwids := &v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{WWIDs: []string{"3600508b400105e210000900000490000"}}}
	for _, c := range []struct {
		got, want v1.UniqueVolumeName
		kind      string
	}{
		{OwnByNode(iscsi), "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2001-04.com.example:disk:2", ISCSI},
		{ByNode(wwns), "kubernetes.io/fc/[50060e801049cfd1 50060e801049cfd2]:0", FC},
		{ByNode(wwids), "kubernetes.io/fc/[3600508b400105e210000900000490000]", FC},
		{ByNode(&v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{TargetWWNs: []string{"a"}}}), "", ""},
		{OwnByNode(&v1.VolumeSource{}), "", ""},
	} {
		if c.got != c.want || KindByNode(c.got) != c.kind {
			t.Errorf("%q of kind %q, not %q of %q", c.got, KindByNode(c.got), c.want, c.kind)
		}
		if _, _, ok := SplitVolumeName(c.got); ok {
			t.Errorf("%q is taken for the name of a CSI volume", c.got)
		}
	}
}
