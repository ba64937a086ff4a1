package eviction

import "testing"

func BenchmarkLook(b *testing.B) {
	n := NodeMemory{Capacity: 24 << 30}
	w := newWatch(Sources{NodeDir: "/", ImageDir: "/", LayerDir: "/", Memory: map[string]MemorySource{MemoryAvailable: n}, PIDs: MachinePIDs})
	for b.Loop() {
		if _, err := w.look(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
	}
}
