package disk

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/test/disks"
)

func TestLookFindsTheFileSystemOfAFolderToBe(t *testing.T) {
	dir := t.TempDir()
	have, err := Look(dir)
	if err != nil {
		t.Fatal(err)
	}
	later, err := Look(filepath.Join(dir, "a", "b"))
	if err != nil || later.Device != have.Device || later.Total != have.Total || have.Total == 0 {
		t.Errorf("%+v, %+v, %v", have, later, err)
	}
}

func TestNextLookComesBeforeTheFloorCanBeUsedUp(t *testing.T) {
	const gi = 1 << 30
	for _, c := range []struct {
		room Room
		want time.Duration
	}{
		{Room{Free: 1000 * gi}, latest},
		{Room{Free: 9*gi - 2*gi}, 1500 * time.Millisecond}, // to 1 GiB, at 4 GiB/s
		{Room{Free: 2 * gi}, 250 * time.Millisecond},
		{Room{Free: gi}, soonest},
		{Room{}, soonest},
		{Room{Free: 1000 * gi, Inodes: 5e6, FreeInodes: 5e5}, 500 * time.Millisecond},
		{Room{Free: 1000 * gi, Inodes: 5e6}, soonest},
	} {
		if got := c.room.NextLook(2 * gi); got != c.want {
			t.Errorf("%+v: %v, want %v", c.room, got, c.want)
		}
	}
}

func TestReserveIsHeldWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=8m")
	free := func() uint64 {
		room, err := Look(dir)
		if err != nil {
			t.Fatal(err)
		}
		return room.Free
	}
	before := free()
	r := Reserve{Path: filepath.Join(dir, "reserve"), Size: 4 << 20}
	for range 2 {
		if err := r.Hold(); err != nil || !r.Held() || before-free() < 4<<20 {
			t.Fatalf("held %v, %d of %d bytes are free, %v", r.Held(), free(), before, err)
		}
	}
	more := Reserve{Path: filepath.Join(dir, "more"), Size: 6 << 20}
	if err := more.Hold(); !errors.Is(err, unix.ENOSPC) || more.Held() {
		t.Errorf("more than there is: %v", err)
	}
	for range 2 {
		if err := r.GiveBackTo(1 << 20); err != nil || r.Held() || before-free() < 1<<20 || before-free() > 2<<20 {
			t.Fatalf("held %v, %d of %d bytes are free, %v", r.Held(), free(), before, err)
		}
	}
	for range 2 {
		if err := r.GiveBack(); err != nil || r.Held() {
			t.Fatalf("held %v, %v", r.Held(), err)
		}
	}
	if after := free(); after != before {
		t.Errorf("%d bytes were free, %d are", before, after)
	}
}
