package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkRead reads what a kubelet says about 170 pods of two containers.
func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	text.WriteString("node_cpu_usage_seconds_total 1000.5 1700000000250\nnode_memory_working_set_bytes 2e+09 1700000000250\n")
	for _, name := range []string{"cpu_usage_seconds_total", "memory_working_set_bytes", "start_time_seconds"} {
		for i := range 340 {
			fmt.Fprintf(&text, "container_%s{container=\"c%d\",namespace=\"default\",pod=\"web-%d\"} %d 1700000000500\n", name, i%2, i/2, 1700000+i)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if s, err := read(strings.NewReader(text.String()), time.Now()); err != nil || len(s.pods) != 170 {
			b.Fatal(len(s.pods), err)
		}
	}
}
