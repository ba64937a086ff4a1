package fields

import (
	"slices"
	"testing"
)

func TestDifferences(t *testing.T) {
	ours := map[string]any{"a": 1.0, "same": "x", "empty": map[string]any{}, "list": []any{map[string]any{"name": "n", "v": true}, 2.0}}
	theirs := map[string]any{"a": 2.0, "same": "x", "list": []any{map[string]any{"name": "n", "v": false}, 2.0, 3.0}}
	want := []string{
		".a: ours 1, upstream's 2", ".empty: ours {}, upstream's <nil>", ".list[2]: ours <nil>, upstream's 3",
		".list[n].v: ours true, upstream's false",
	}
	if got := Differences(ours, theirs); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Differences(ours, ours); got != nil {
		t.Errorf("%q of the same", got)
	}
}
