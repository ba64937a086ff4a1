package metrics

import (
	"strings"
	"testing"
)

func FuzzParseLinks(f *testing.F) {
	f.Add("Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
	f.Fuzz(func(t *testing.T, doc string) {
		for _, l := range parseLinks(doc) {
			if l.name == "lo" || !strings.Contains(doc, l.name) {
				t.Errorf("%q: a link %q", doc, l.name)
			}
		}
	})
}
