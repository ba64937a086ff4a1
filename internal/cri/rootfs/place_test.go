package rootfs

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPlaceBehindALinkOfTheImage: an image may call /proc by another name.
func TestPlaceBehindALinkOfTheImage(t *testing.T) {
	root, volume := t.TempDir(), t.TempDir()
	for _, d := range []string{"proc", "a"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"p": "/proc", "a/q": "../../../proc", "top": "/"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for place, ok := range map[string]bool{
		"/p": false, "/a/q": false, "/a/q/new/one": false, "/top": false, "/top/proc": false, "/top/new": true, "/a/new/proc": true, "/p/uptime": true,
	} {
		if err := CheckPlace(root, place, volume); (err == nil) != ok {
			t.Errorf("%s: %v", place, err)
		}
	}
	if err := CheckPlace(root, "/proc", "/proc"); err != nil {
		t.Errorf("the machine's own /proc: %v", err)
	}
}
