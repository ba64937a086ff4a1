package mount

import (
	"slices"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestShowing(t *testing.T) {
	on := func(point, root string, minor int) *mountinfo.Info {
		return &mountinfo.Info{Mountpoint: point, Root: root, Major: 8, Minor: minor}
	}
	all := []*mountinfo.Info{
		on("/", "/", 1), on("/data", "/sub", 2), on("/pod/a", "/sub/v/pvc-1", 2), on("/pod/b", "/sub/v/pvc-1/part", 2), on("/pod/c", "/sub/v/pvc-10", 2),
		on("/pod/d", "/sub/v/pvc-1", 1), on("/pod/e", "/sub", 2), on("/pod/f", "/v/pvc-1", 2), on("/pod/g", "/srv/x", 1),
	}
	for dir, want := range map[string][]string{
		"/data/v/pvc-1": {"/pod/a", "/pod/b"}, "/data/v/pvc-10": {"/pod/c"}, "/data/v/pvc-2": nil, "/srv": {"/pod/g"}, "/srv/y": nil,
	} {
		if got := showing(dir, all); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", dir, got, want)
		}
	}
}
