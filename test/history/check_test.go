package history

import (
	"slices"
	"strings"
	"testing"
)

// sound is a history of two keys without a fault.
func sound() *history {
	return &history{
		truth: []event{{2, "a", "v1"}, {3, "b", "v2"}, {4, "a", "v3"}, {5, "b", ""}, {6, "b", "v4"}},
		writes: []write{
			{key: "a", value: "v1", invoked: 1, returned: 2, outcome: acknowledged, version: 2},
			{key: "b", value: "v2", invoked: 1, returned: 4, outcome: acknowledged, version: 3},
			{key: "a", value: "v3", before: 2, invoked: 5, returned: 6, outcome: acknowledged, version: 4},
			{key: "a", value: "v9", before: 2, invoked: 5, returned: 7, outcome: refused},
			{key: "b", before: 3, invoked: 8, returned: 9, outcome: acknowledged},
			{key: "b", value: "v4", invoked: 10, returned: 20, outcome: unknown},
			{key: "b", value: "v5", before: 6, invoked: 11, returned: 20, outcome: unknown},
		},
		reads: []read{
			{key: "a", version: 2, invoked: 3, returned: 4}, {key: "b", invoked: 10, returned: 11}, {key: "b", version: 6, invoked: 12, returned: 13},
			{version: 5, state: map[string]string{"a": "v3"}, invoked: 10, returned: 12}, {version: 2, state: map[string]string{"a": "v1"}, any: true, invoked: 30, returned: 31},
		},
		streams: []stream{{after: 2, events: []event{{3, "b", "v2"}, {version: 3}, {4, "a", "v3"}, {5, "b", ""}}}, {after: 5, events: []event{{6, "b", "v4"}, {version: 9}}}},
		reigns:  []reign{{"x", 1, 5}, {"y", 5, 9}, {"x", 10, 12}},
	}
}

func TestChecker(t *testing.T) {
	if errs := sound().check(); len(errs) > 0 {
		t.Fatalf("a sound history: %v", errs)
	}
	for want, spoil := range map[string]func(*history){
		"lost: ":                                  func(h *history) { h.truth = slices.Delete(h.truth, 2, 3) },
		"refused, but done":                       func(h *history) { h.writes[5].outcome = refused },
		"answered with version 7":                 func(h *history) { h.writes[0].version = 7 },
		"v4 was written twice":                    func(h *history) { h.truth = append(h.truth, event{7, "b", "v4"}) },
		"nobody wrote":                            func(h *history) { h.truth = append(h.truth, event{7, "c", "v7"}) },
		"written over version 2, not 0":           func(h *history) { h.writes[2].before = 0 },
		"two clients deleted one object":          func(h *history) { h.writes = append(h.writes, h.writes[4]) },
		"began after 4 was acknowledged":          func(h *history) { h.writes[1].invoked, h.writes[1].returned = 7, 8 },
		"which ended with 4":                      func(h *history) { h.reads[0].invoked, h.reads[0].returned = 7, 8 },
		"was never in version 7":                  func(h *history) { h.reads[0].version = 7 },
		"found nothing":                           func(h *history) { h.reads[1].key = "a" },
		"a list of version 2 began after":         func(h *history) { h.reads[4].any = false },
		"a list of version 5 has":                 func(h *history) { h.reads[3].state["b"] = "v2" },
		"saw {version:4 key:a value:v3}, the nex": func(h *history) { h.streams[0].events = slices.Delete(h.streams[0].events, 0, 2) },
		"saw {version:3 key:b value:v2}, the nex": func(h *history) { h.streams[0].events = slices.Insert(h.streams[0].events, 1, h.streams[0].events[0]) },
		"the next event was {version:3": func(h *history) {
			h.streams[0].events[0], h.streams[0].events[2] = h.streams[0].events[2], h.streams[0].events[0]
		},
		"but lacks {version:4":       func(h *history) { h.streams[0].events[1].version = 4 },
		"the next event was nothing": func(h *history) { h.streams[1].events = append(h.streams[1].events, event{7, "a", "v8"}) },
		"two leaders":                func(h *history) { h.reigns[0].to = 6 },
	} {
		h := sound()
		spoil(h)
		errs := h.check()
		if !slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), want) }) {
			t.Errorf("want %q, got %v", want, errs)
		}
	}
}
