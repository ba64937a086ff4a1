package daemon

import (
	"path/filepath"
	"testing"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

// Unused images go before pulls are refused and pods are evicted, and never because a large disk is
// rather full.
func TestThresholdsOfImages(t *testing.T) {
	for total, want := range map[uint64][2]int32{
		0: {100, 99}, 192 << 20: {60, 20}, 600 << 20: {68, 36}, 10 << 30: {90, 80}, 100 << 30: {98, 96}, 1 << 40: {99, 98},
	} {
		room := disk.Room{Total: total}
		high, low := imageThresholds(room)
		if high != want[0] || low != want[1] {
			t.Errorf("%d MiB: %d and %d, want %v", total>>20, high, low, want)
		}
		stop, _ := keepFree(room)
		if total > 300<<20 && total/100*uint64(100-high) < stop {
			t.Errorf("%d MiB: pulls stop before images go", total>>20)
		}
	}
}

// What lies in the folder of archives is pinned, also after the start that imported it, until the archive
// is taken away.
func TestImagesOfArchivesArePinned(t *testing.T) {
	dir, archives := t.TempDir(), t.TempDir()
	if err := images.SaveBusybox(filepath.Join(archives, "busybox.tar")); err != nil {
		t.Fatal(err)
	}
	for start, folder := range []string{archives, archives, t.TempDir()} {
		store, err := image.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := importImages(t.Context(), store, folder, func(string) {}); err != nil {
			t.Fatal(err)
		}
		if list := store.List(); len(list) != 1 || list[0].Pinned != (folder == archives) {
			t.Errorf("start %d: %+v", start, list)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
