package eviction

import (
	"os"
	"path/filepath"
	"testing"
)

// Huge pages are set aside: they are free memory for nobody else.
func TestHugePagesAreNotFree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meminfo")
	for text, want := range map[string]int64{
		"MemTotal:  100 kB\nHugetlb:         2097152 kB\nDirectMap4k: 1 kB\n": 2 << 30, "Hugetlb: 0 kB\n": 0, "MemTotal: 1 kB\n": 0,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := hugePages(file); n != want || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	if err := os.WriteFile(file, []byte("Hugetlb: many kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := hugePages(file); err == nil {
		t.Error("what is no number is one")
	}
	if n := free(4<<30, 1<<30, 1<<29, 2<<30); n != 3<<29 {
		t.Errorf("%d bytes are free", n)
	}
	if n := free(1<<30, 1<<30, 0, 1<<30); n != 0 {
		t.Errorf("%d bytes are free", n)
	}
}
