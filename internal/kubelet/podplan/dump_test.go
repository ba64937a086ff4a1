package podplan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// dump is what a kubelet shows at /debug/pods/UID.
type dump struct {
	At     time.Time
	Input  Input
	Plan   Plan
	Status v1.PodStatus
}

// TestDumps feeds dumps to the plan, as they come from a kubelet: what it decided then it must
// decide now. To turn a pod that went wrong somewhere into a test, put its dump into testdata/dumps
// and correct Plan and Status there.
func TestDumps(t *testing.T) {
	files, err := filepath.Glob("testdata/dumps/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no dumps", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var d dump
			if err := json.Unmarshal(data, &d); err != nil {
				t.Fatal(err)
			}
			wantJSON(t, "plan", Next(d.Input, d.At), d.Plan)
			wantJSON(t, "status", Status(d.Input, d.At), d.Status)
		})
	}
}

// wantJSON compares two values in the form in which people read them in a dump.
func wantJSON(t *testing.T, what string, got, want any) {
	t.Helper()
	text := [2]string{}
	for i, v := range []any{got, want} {
		data, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		text[i] = string(data)
	}
	if text[0] != text[1] {
		t.Errorf("%s:\n%s\nwant\n%s", what, text[0], text[1])
	}
}
