package cri

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"wherry.dev/internal/trace"
)

// TestSteps prints the median of every step of 40 pods' lives, to see where the time
// goes: WHERRY_PROFILE=1 go test -run TestSteps -v.
func TestSteps(t *testing.T) {
	if os.Getenv("WHERRY_PROFILE") == "" {
		t.Skip("set WHERRY_PROFILE to measure")
	}
	store := trace.NewStore()
	shutdown := store.Install()
	defer func() { _ = shutdown(t.Context()) }()
	n := newNode(t)
	took := map[string][]time.Duration{}
	for range 40 {
		p := n.pod()
		id := p.start(containerConfig("c", "sleep", "1000"))
		n.exec(id, "true")
		n.must(n.run.StopPodSandbox(t.Context(), p.id))
		n.must(n.run.RemovePodSandbox(t.Context(), p.id))
		tr, _ := store.Pod(p.cfg.Metadata.Uid)
		for _, s := range tr.Spans {
			took[s.Name] = append(took[s.Name], s.Duration())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(took)) {
		d := took[name]
		slices.Sort(d)
		fmt.Printf("%-28s %4d  p50 %-10v p90 %v\n", name, len(d), d[len(d)/2].Round(10*time.Microsecond), d[len(d)*9/10].Round(10*time.Microsecond))
	}
}
