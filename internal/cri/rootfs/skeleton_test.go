package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSkeletonsAreBounded keeps mounting at new places.
func TestSkeletonsAreBounded(t *testing.T) {
	s := Skeletons(filepath.Join(t.TempDir(), "skeletons"))
	folder := t.TempDir()
	plain, err := s.Layer(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mostSkeletons + 10 {
		dir, err := s.Layer([]*runtimeapi.Mount{{HostPath: folder, ContainerPath: fmt.Sprintf("/%d", i)}})
		if err != nil {
			t.Fatal(err)
		}
		if own := i < mostSkeletons-1; own != (dir != plain) {
			t.Fatalf("skeleton %d is %s", i, dir)
		}
	}
	if err := os.Mkdir(filepath.Join(string(s), newSkeleton+"1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadDir(string(s))
	if err != nil || len(made) != mostSkeletons {
		t.Errorf("%d skeletons, %v", len(made), err)
	}
	for _, d := range made {
		if strings.HasPrefix(d.Name(), newSkeleton) {
			t.Errorf("left: %s", d.Name())
		}
	}
}
