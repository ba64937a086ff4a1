package disk

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWritableLayersAreMeasuredNowAndThen(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	var u Measured
	inodes := func(at time.Time) uint64 {
		t.Helper()
		got, err := u.Get(at, dir)
		if err != nil {
			t.Fatal(err)
		}
		return got.GetInodesUsed().GetValue()
	}
	before := inodes(now)
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.took = time.Second // as for a large folder
	if n := inodes(now.Add(usageAge - 1)); n != before {
		t.Errorf("measured again too soon: %d, %d", before, n)
	}
	if n := inodes(now.Add(usageAge)); n != before+1 {
		t.Errorf("%d inodes, then %d", before, n)
	}
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.took = time.Millisecond
	if n := inodes(now.Add(usageAge + 2*usageShare*time.Millisecond)); n != before+2 {
		t.Errorf("a small one is looked at only now and then: %d inodes, then %d", before, n)
	}
}
