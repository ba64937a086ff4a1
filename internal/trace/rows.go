package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// waveGap separates pods that started together from those that started later: each wave has a time
// axis of its own.
const waveGap = 10 * time.Second

// Rows are the pods of a workload.
type Rows struct {
	// Title names the workload.
	Title string `json:"title"`
	// Created is when it was created.
	Created time.Time `json:"created"`
	// Objects are the workload itself, what stands between it and its pods, and their services.
	Objects []Trace `json:"objects,omitempty"`
	Pods    []Trace `json:"pods"`
	// Untraced are pods of which no trace is kept.
	Untraced []string `json:"untraced,omitempty"`
}

// mainSteps are those that a row tells apart, by the beginnings of spans' names; the first that fits.
var mainSteps = []struct {
	letter rune
	words  string
	prefix []string
}{
	{'a', "API server", []string{"apiserver: create"}},
	{statusStep, "status", []string{"apiserver: ", "kubelet: write status"}},
	{'q', "scheduler's queue", []string{"scheduler: wait in queue"}},
	{'s', "scheduler", []string{"scheduler: "}},
	{'i', "image", []string{"image: "}},
	{'n', "sandbox and network", []string{"cri: run sandbox", "cri: sandbox", "cri: namespaces", "cri: pod init", "network: "}},
	{'c', "containers", []string{"cri: ", "oci: "}},
	{'k', "kubelet", []string{"kubelet: "}},
	{'e', "endpoints", []string{"endpointslice: "}},
	{'p', "service rules", []string{"proxy: "}},
	{'d', "name", []string{"dns: "}},
}

const (
	otherStep  = '-'
	noStep     = ' '
	statusStep = 'r' // reports run beside the others, and hide none of them
)

// mostSaid is how many characters of a failure stand in a row.
const mostSaid = 60

func letterOf(span string) rune {
	for _, m := range mainSteps {
		if slices.ContainsFunc(m.prefix, func(p string) bool { return strings.HasPrefix(span, p) }) {
			return m.letter
		}
	}
	return otherStep
}

// Rows draws the pods of a workload below each other, a row each, on a common time axis that begins
// with the workload's creation, and above them the objects that were made along with them. all draws their whole lives, not only their starts.
func (d Draw) Rows(w io.Writer, r Rows, all bool) error {
	rows := starts(slices.Concat(r.near(), r.Pods), all)
	label := min(max(widest(rows), utf8.RuneCountInString(r.Title)), max(24, d.Width/2))
	var b strings.Builder
	used := map[rune]bool{}
	begin := r.Created
	for i, wave := range waves(r.Created, rows) {
		if len(wave) == 0 { // no pod started with the workload
			fmt.Fprintf(&b, "%s was created at %s\n", r.Title, r.Created.UTC().Format(time.RFC3339))
			continue
		}
		title := r.Title
		if i > 0 {
			begin, title = wave[0].Spans[0].Start, ""
			fmt.Fprintf(&b, "\n%s after the creation\n", begin.Sub(r.Created).Round(time.Millisecond))
		}
		d.wave(&b, label, begin, title, wave, used)
	}
	for _, name := range r.Untraced {
		fmt.Fprintf(&b, "pod %s: no trace is kept of it\n", name)
	}
	b.WriteString(legend(used))
	_, err := io.WriteString(w, b.String())
	return err
}

// near returns the objects that were made with the workload or later. What was there long before does
// not belong on the axis.
func (r Rows) near() []Trace {
	return slices.DeleteFunc(slices.Clone(r.Objects), func(t Trace) bool {
		return len(t.Spans) > 0 && r.Created.Sub(t.Spans[0].Start) > waveGap
	})
}

// starts returns the traces in the order in which they began, with only what is to be drawn.
func starts(pods []Trace, all bool) []Trace {
	var out []Trace
	for _, t := range pods {
		if !all {
			t.Spans = t.start()
		}
		if len(t.Spans) > 0 {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b Trace) int { return a.Spans[0].Start.Compare(b.Spans[0].Start) })
	return out
}

// start returns the steps of a start: those before the first pause or, if it follows soon, those until
// services lead to the pod. It waits for a probe in between.
func (t Trace) start() []Span {
	var out []Span
	for i, e := range t.Episodes() {
		serves := slices.ContainsFunc(e, func(s Span) bool { return strings.HasPrefix(s.Name, "proxy: ") })
		switch {
		case i == 0:
			out = e
		case e[0].Start.Sub(out[0].Start) > waveGap:
			return out
		case serves:
			return slices.Concat(t.Episodes()[:i+1]...)
		}
	}
	return out
}

func widest(rows []Trace) (n int) {
	for _, t := range rows {
		n = max(n, utf8.RuneCountInString(rowName(t)))
	}
	return n
}

func rowName(t Trace) string { return cmp.Or(t.Kind, "pod") + " " + t.Name }

// waves splits rows at long pauses. The first wave is that of the creation, and may be empty.
func waves(created time.Time, rows []Trace) [][]Trace {
	out, end := [][]Trace{nil}, created
	for _, t := range rows {
		start, last := bounds(t.Spans)
		if start.Sub(end) > waveGap {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], t)
		if last.After(end) {
			end = last
		}
	}
	return out
}

// wave draws the rows on an axis from begin on.
func (d Draw) wave(b *strings.Builder, label int, begin time.Time, title string, rows []Trace, used map[rune]bool) {
	end := begin
	for _, t := range rows {
		start, last := bounds(t.Spans)
		if start.Before(begin) {
			begin = start
		}
		if last.After(end) {
			end = last
		}
	}
	width := max(10, d.Width-label-14)
	fmt.Fprintf(b, "%s  %s\n", clip(title, label), axis(width, end.Sub(begin)))
	for _, t := range rows {
		start, last := bounds(t.Spans)
		cells, failed := cells(t.Spans, begin, end, width, used)
		fmt.Fprintf(b, "%s  %s %9s", clip(rowName(t), label), d.paint("36", cells), millis(last.Sub(start)))
		if failed != "" {
			b.WriteString("  " + d.paint("31", "failed: "+strings.TrimSpace(clip(failed, mostSaid))))
		}
		b.WriteString("\n")
	}
}

// cells returns a letter for each column: that of the innermost step at that time; and what failed
// first.
func cells(spans []Span, begin, end time.Time, width int, used map[rune]bool) (line, failed string) {
	out := []rune(strings.Repeat(string(noStep), width))
	at := func(t time.Time) int {
		if total := end.Sub(begin); total > 0 {
			return min(width-1, int(int64(width)*int64(t.Sub(begin))/int64(total)))
		}
		return 0
	}
	byStart := slices.Clone(spans)
	slices.SortStableFunc(byStart, func(a, b Span) int { return cmp.Or(layer(a)-layer(b), a.Start.Compare(b.Start)) })
	for _, s := range byStart { // later ones lie above
		letter := letterOf(s.Name)
		for i := at(s.Start); i <= at(s.End); i++ {
			out[i] = letter
		}
		if s.Error != "" && failed == "" {
			failed = s.Error
		}
	}
	for _, r := range out {
		used[r] = true
	}
	return string(out), failed
}

// layer is 0 for what hides nothing, and 2 for moments, which nothing hides.
func layer(s Span) int {
	switch {
	case letterOf(s.Name) == statusStep:
		return 0
	case s.Start.Equal(s.End):
		return 2
	}
	return 1
}

// legend says what the letters mean that were used.
func legend(used map[rune]bool) string {
	var out []string
	for _, m := range mainSteps {
		if used[m.letter] {
			out = append(out, fmt.Sprintf("%c %s", m.letter, m.words))
		}
	}
	if used[otherStep] {
		out = append(out, string(otherStep)+" other steps")
	}
	if len(out) == 0 {
		return "no steps recorded\n"
	}
	return strings.Join(out, " · ") + "\n"
}
