package main

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestDifferences(t *testing.T) {
	const a, b = `Pod {"metadata":{"name":"p"},"spec":{"x":1}}`, `Pod {"metadata":{"name":"p"},"spec":{"x":2,"y":3}}`
	for name, tt := range map[string]struct {
		ours, theirs []string
		want         string // all lines
	}{
		"the same":      {[]string{a, a}, []string{a, a}, ""},
		"other fields":  {[]string{a}, []string{b}, "Pod p (ours +1, upstream's +1):\n    .spec.x: ours 1, upstream's 2\n    .spec.y: ours <nil>, upstream's 3\n"},
		"one more":      {[]string{a, a}, []string{a}, "only ours (1): " + a + "\n"},
		"only theirs":   {nil, []string{"Event E"}, "only upstream's (1): Event E\n"},
		"events differ": {[]string{"Event A"}, []string{"Event B"}, "only ours (1): Event A\nonly upstream's (1): Event B\n"},
	} {
		if got := differences(tt.ours, tt.theirs); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}

// TestPlain: what differs by chance does not show, and what does not, does.
func TestPlain(t *testing.T) {
	const pod = `{"kind":"Pod","metadata":{"name":"web-5d7f-bcdfg","generateName":"web-5d7f-","uid":"u-1","resourceVersion":"7",
		"creationTimestamp":"2026-11-29T00:00:00Z"},"spec":{"nodeName":"n-1"},"status":{"podIP":"10.244.0.7","phase":"Running"}}`
	one := textFor(t, pod)
	other := textFor(t, strings.NewReplacer("bcdfg", "xkz24", "u-1", "u-2", `"7"`, `"9"`, "2026-11-29", "2026-11-30", "n-1", "n-2", "0.7", "0.9").Replace(pod))
	if one != other {
		t.Errorf("%s\nand\n%s", one, other)
	}
	if failed := textFor(t, strings.Replace(pod, "Running", "Failed", 1)); failed == one {
		t.Errorf("a failed pod is %s", failed)
	}
}

func textFor(t *testing.T, doc string) string {
	t.Helper()
	var u unstructured.Unstructured
	if err := json.Unmarshal([]byte(doc), &u.Object); err != nil {
		t.Fatal(err)
	}
	text, err := plain(&u, (&side{}).names([]unstructured.Unstructured{u}))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestSeedsPlayTheSameAgain: what a failure prints is of no use if its seed makes another scene.
func TestSeedsPlayTheSameAgain(t *testing.T) {
	for seed := range uint64(50) {
		a, b := newScene(seed, ""), newScene(seed, "")
		for step := range 12 {
			one, _ := a.next(step)
			other, _ := b.next(step)
			if one != other {
				t.Fatalf("seed %d: %s, then %s", seed, one, other)
			}
		}
	}
}
