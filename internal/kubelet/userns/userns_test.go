package userns

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func open(t *testing.T, cfg Config) *Allocator {
	t.Helper()
	a, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func get(t *testing.T, a *Allocator, uid types.UID) Range {
	t.Helper()
	r, err := a.Get(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRangesDoNotOverlap, not even after a restart of the kubelet, nor with another length.
func TestRangesDoNotOverlap(t *testing.T) {
	cfg := Config{Pods: t.TempDir(), IDsPerPod: Unit, MaxPods: 110}
	a := open(t, cfg)
	first := get(t, a, "a")
	if first != (Range{Unit, Unit}) {
		t.Errorf("the first range is %+v", first)
	}
	b := get(t, a, "b")
	a = open(t, cfg)
	if again := get(t, a, "a"); again != first {
		t.Errorf("after a restart pod a has %+v, before %+v", again, first)
	}
	if c := get(t, a, "c"); c == first || c == b {
		t.Errorf("pod c got the range of another: %+v", c)
	}
	cfg.IDsPerPod = 2 * Unit
	a = open(t, cfg)
	if again := get(t, a, "a"); again != first {
		t.Errorf("another length took pod a's range away: %+v", again)
	}
	for _, uid := range []types.UID{"d", "e"} {
		if r := get(t, a, uid); r.Length != 2*Unit || r.First <= 3*Unit {
			t.Errorf("pod %s: %+v overlaps", uid, r)
		}
	}
}

func TestReleasedRangesComeLast(t *testing.T) {
	a := open(t, Config{Pods: t.TempDir(), IDsPerPod: Unit, Host: Range{Unit, 3 * Unit}, MaxPods: 3})
	first := get(t, a, "a")
	get(t, a, "b")
	if err := a.Release("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(a.pods, "a", fileName)); !os.IsNotExist(err) {
		t.Errorf("the released range is on disk: %v", err)
	}
	if r := get(t, a, "c"); r == first {
		t.Error("a range was given out again at once")
	}
	if r := get(t, a, "d"); r != first {
		t.Errorf("the freed range was not found: %+v", r)
	}
	if _, err := a.Get(t.Context(), "e"); err == nil || !strings.Contains(err.Error(), "empty slot") {
		t.Errorf("a fourth pod of three: %v", err)
	}
}

func TestConfigurationsThatCannotWork(t *testing.T) {
	for text, cfg := range map[string]Config{
		"multiple of":     {IDsPerPod: 1000},
		"must not be bel": {IDsPerPod: Unit, Host: Range{0, 10 * Unit}},
		"first ID 70000":  {IDsPerPod: Unit, Host: Range{70000, 10 * Unit}},
		"of 100000 IDs":   {IDsPerPod: Unit, Host: Range{Unit, 100000}},
		"too small":       {IDsPerPod: Unit, Host: Range{Unit, 10 * Unit}, MaxPods: 11},
	} {
		cfg.Pods = t.TempDir()
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", cfg, err, text)
		}
	}
}

// TestDamagedRecord: a damaged record used to keep the kubelet from starting. The running pod keeps
// its range, and no other pod gets one until that range is known.
func TestDamagedRecord(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Pods: dir, IDsPerPod: Unit})
	running := get(t, a, "running")
	get(t, a, "stopped")
	get(t, a, "going")
	for _, uid := range []string{"running", "stopped", "going"} {
		if err := os.WriteFile(filepath.Join(dir, uid, fileName), []byte(`{"version":1,"data":{"first":65536,"len`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	silent := errors.New("the runtime is silent")
	a = open(t, Config{Pods: dir, IDsPerPod: Unit, Shown: func(_ context.Context, uid types.UID) (Range, bool, error) {
		return running, uid == "running", silent
	}})
	if _, err := a.Get(t.Context(), "new"); !errors.Is(err, silent) {
		t.Errorf("a range was given out while nobody knew whose it is: %v", err)
	}
	if err := a.Release("going"); err != nil {
		t.Errorf("a pod with a damaged record cannot go: %v", err)
	}
	silent = nil
	for _, uid := range []types.UID{"new", "stopped"} {
		if r := get(t, a, uid); r.overlaps(running) {
			t.Errorf("pod %s got the range of the pod that runs: %+v", uid, r)
		}
	}
	a = open(t, Config{Pods: dir, IDsPerPod: Unit})
	if r := get(t, a, "running"); r != running {
		t.Errorf("the pod has %+v, before %+v", r, running)
	}
	if _, err := os.Stat(filepath.Join(dir, "going", fileName)); !os.IsNotExist(err) {
		t.Errorf("the record of the pod that went: %v", err)
	}
}

// TestSameRangeTwice, as a copied directory leaves it: the kubelet starts, and the range is free
// only once both pods are gone.
func TestSameRangeTwice(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Pods: dir, IDsPerPod: Unit, Host: Range{Unit, 2 * Unit}}
	r := get(t, open(t, cfg), "a")
	if err := os.CopyFS(filepath.Join(dir, "b"), os.DirFS(filepath.Join(dir, "a"))); err != nil {
		t.Fatal(err)
	}
	a := open(t, cfg)
	if get(t, a, "a") != r || get(t, a, "b") != r {
		t.Error("a pod lost its range")
	}
	if err := a.Release("a"); err != nil {
		t.Fatal(err)
	}
	if c := get(t, a, "c"); c == r {
		t.Error("pod c got the range that pod b still has")
	}
}

func TestSubordinateIDs(t *testing.T) {
	if r, err := parseSubIDs("0: kubelet 65536 7208960\n"); err != nil || r != (Range{65536, 7208960}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "0: kubelet 65536", "0: kubelet a 1", "0: kubelet 1 65536\n1: kubelet 131072 65536\n"} {
		if _, err := parseSubIDs(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	path := filepath.Join(t.TempDir(), "subuid")
	if err := os.WriteFile(path, []byte("root:1:2\nkubelet:65536:131072\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := fromFile(path); err != nil || r != (Range{65536, 131072}) {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzParseSubIDs(f *testing.F) {
	f.Add("0: kubelet 65536 7208960\n")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := parseSubIDs(s); err != nil && r != (Range{}) {
			t.Errorf("%q: %+v and an error", s, r)
		}
	})
}
