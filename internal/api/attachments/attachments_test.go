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
