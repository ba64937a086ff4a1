package trace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func at(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }

func TestSpansBelongToTheirPod(t *testing.T) {
	s := NewStore()
	shutdown := s.Install()
	t.Cleanup(func() { _ = shutdown(context.Background()) })
	ctx := WithPod(t.Context(), "uid-1")
	ctx, outer := Start(ctx, "outer")
	_, inner := Start(ctx, "inner")
	_ = End(inner, errors.New("no luck"))
	_ = End(outer, nil)
	_, other := Start(t.Context(), "nobody's")
	_ = End(other, nil)
	Record(t.Context(), "uid-1", "before", at(0), at(5), PodName.String("p"), Namespace.String("ns"))

	got, ok := s.ByName("ns", "p")
	if !ok || len(got.Spans) != 3 {
		t.Fatalf("got %+v", got)
	}
	if got.Spans[0].Name != "before" || got.Spans[0].Duration() != 5*time.Millisecond {
		t.Errorf("first: %+v", got.Spans[0])
	}
	if in := got.Spans[2]; in.Parent != got.Spans[1].ID || in.Error != "no luck" {
		t.Errorf("inner: %+v", in)
	}
}

func TestStoreIsBounded(t *testing.T) {
	s := NewStore()
	shutdown := s.Install()
	t.Cleanup(func() { _ = shutdown(context.Background()) })
	for i := range maxSpansPerPod * 2 {
		Record(t.Context(), "busy", fmt.Sprint(i), at(i), at(i+1))
	}
	for i := range maxPods {
		Record(t.Context(), fmt.Sprint("pod", i), "x", at(0), at(1))
		if i == 0 {
			got, _ := s.Pod("busy")
			if len(got.Spans) != maxSpansPerPod || got.Spans[0].Name != "0" || got.Spans[maxSpansPerPod-1].Name != fmt.Sprint(maxSpansPerPod*2-1) {
				t.Errorf("%d spans, %s to %s", len(got.Spans), got.Spans[0].Name, got.Spans[len(got.Spans)-1].Name)
			}
		}
	}
	if _, ok := s.Pod("busy"); ok {
		t.Error("the oldest pod is still there")
	}
}

func TestEpisodes(t *testing.T) {
	tr := Trace{Spans: []Span{
		{Name: "long", Start: at(0), End: at(2000)}, {Name: "in it", Start: at(10), End: at(20)},
		{Name: "after it", Start: at(2100), End: at(2200)}, {Name: "much later", Start: at(9000), End: at(9001)},
	}}
	if e := tr.Episodes(); len(e) != 2 || len(e[0]) != 3 || len(e[1]) != 1 {
		t.Errorf("got %v", e)
	}
}

func TestWaterfallNamesTheDominantStep(t *testing.T) {
	spans := []Span{
		{Name: "a", ID: "1", Start: at(0), End: at(100)},
		{Name: "b", ID: "2", Parent: "1", Start: at(10), End: at(80)},
		{Name: "c", ID: "3", Start: at(100), End: at(101), Error: "oops"},
		{Name: "beside", ID: "4", Start: at(5), End: at(6)},
	}
	var out strings.Builder
	if err := (Draw{Width: 80}).Waterfall(&out, spans); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"total 101.0 ms, dominated by b: 70.0 ms (69 %)", "  b ", "failed: oops"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if b, beside := strings.Index(out.String(), "  b "), strings.Index(out.String(), "beside "); b > beside {
		t.Errorf("a step is not right below its parent:\n%s", out.String())
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSpace(line))); n > 80 && !strings.Contains(line, "failed") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
