package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/storage"
)

func TestDefragmentedDataAreSmallAndStillHaveRoomHeld(t *testing.T) {
	dir := t.TempDir()
	s := startIn(t, dir)
	c := admin(t, s)
	for i := range 40 {
		if err := makeMap(t, c, fmt.Sprint("m-", i), 500<<10); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Compact(t.Context()); err != nil {
		t.Errorf("nothing left to compact: %v", err)
	}
	w := startWriters(t, c) // they wait meanwhile, and none fails
	out, err := s.Defragment(t.Context())
	if err != nil || len(out) != 1 || out[0].Before < 20<<20 || out[0].After > 8<<20 {
		t.Fatalf("defragmented: %+v, %v", out, err)
	}
	w.await(t, 20)
	w.stop()
	wantMaps(t, s, w.acknowledged(), 0)
	var database syscall.Stat_t
	if err := syscall.Stat(filepath.Join(DataIn(dir), "member", "snap", "db"), &database); err != nil {
		t.Fatal(err)
	}
	if held := database.Blocks*512 - database.Size; held < 16<<20 {
		t.Errorf("%d MiB of the disk are held behind the database's end", held>>20)
	}
	if left, err := filepath.Glob(filepath.Join(DataIn(dir), "member", "snap", "db.tmp*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDefragmentationNeedsRoom(t *testing.T) {
	dir := diskOf(t, "256m")
	s := startIn(t, dir)
	hog := fill(t, dir)
	if _, err := s.Defragment(t.Context()); apierrors.ReasonForError(err) != storage.ReasonInsufficientStorage {
		t.Errorf("on a full disk: %v", err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Defragment(t.Context()); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestQuotaAlarmOfAnExternalEtcdEndsWithADefragmentation(t *testing.T) {
	address := externalEtcd(t, 16<<20)
	s := start(t, func(c *Config) { c.EtcdServers = []string{address} })
	c := admin(t, s)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = makeMap(t, c, fmt.Sprint("m-", i), 500<<10)
	}
	if apierrors.ReasonForError(err) != storage.ReasonInsufficientStorage {
		t.Fatalf("the quota was not reached: %v", err)
	}
	if err := c.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Defragment(t.Context()); err != nil || len(out) != 1 || out[0].Member != address || out[0].After >= out[0].Before {
		t.Fatalf("defragmented: %+v, %v", out, err)
	}
	if err := makeMap(t, c, "after", 500<<10); err != nil {
		t.Error(err)
	}
}
