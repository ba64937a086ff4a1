package trace

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// episodeGap separates what happened to a pod at one time (its start, a restart, its end) from what
// happened at another.
const episodeGap = 500 * time.Millisecond

// Episodes splits a trace at the pauses in which nothing ran.
func (t Trace) Episodes() [][]Span {
	var out [][]Span
	var end time.Time
	for _, s := range t.Spans {
		if len(out) == 0 || s.Start.Sub(end) > episodeGap {
			out = append(out, nil)
		}
		last := len(out) - 1
		out[last] = append(out[last], s)
		if s.End.After(end) {
			end = s.End
		}
	}
	return out
}

// Draw configures how a waterfall looks.
type Draw struct {
	Width int  // columns of the terminal
	Color bool // ANSI colours
}

// Waterfall draws the spans below each other on a common time axis, says how long each took, and
// names the step that dominated.
func (d Draw) Waterfall(w io.Writer, spans []Span) error {
	if len(spans) == 0 {
		_, err := fmt.Fprintln(w, "no steps recorded")
		return err
	}
	start, end := bounds(spans)
	spans, names := tree(spans)
	label := 0
	for _, n := range names {
		label = max(label, utf8.RuneCountInString(n))
	}
	label = min(label, max(24, d.Width/2))
	bar := max(10, d.Width-label-14)
	if _, err := fmt.Fprintf(w, "%*s  %s\n", label, "", axis(bar, end.Sub(start))); err != nil {
		return err
	}
	for i, s := range spans {
		line := fmt.Sprintf("%-*s  %s %9s", label, clip(names[i], label), d.bar(s, start, end, bar), millis(s.Duration()))
		if s.Error != "" {
			line += "  " + d.paint("31", "failed: "+s.Error)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, d.summary(spans, end.Sub(start)))
	return err
}

func bounds(spans []Span) (start, end time.Time) {
	start, end = spans[0].Start, spans[0].End
	for _, s := range spans {
		if s.Start.Before(start) {
			start = s.Start
		}
		if s.End.After(end) {
			end = s.End
		}
	}
	return start, end
}

// tree puts each step below its parent, indented by two spaces per level. Steps of the same parent
// are in the order in which they began.
func tree(spans []Span) (ordered []Span, names []string) {
	known := map[string]bool{}
	for _, s := range spans {
		known[s.ID] = true
	}
	children := map[string][]Span{}
	for _, s := range spans {
		parent := s.Parent
		if !known[parent] || parent == s.ID {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	var walk func(parent string, depth int)
	walk = func(parent string, depth int) {
		for _, s := range children[parent] {
			ordered = append(ordered, s)
			names = append(names, strings.Repeat("  ", depth)+s.Name)
			if s.ID != "" {
				walk(s.ID, depth+1)
			}
		}
	}
	walk("", 0)
	return ordered, names
}

func clip(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s + strings.Repeat(" ", width-len(r))
	}
	return string(r[:width-1]) + "…"
}

func (d Draw) bar(s Span, start, end time.Time, width int) string {
	total := end.Sub(start)
	at := func(t time.Time) int {
		if total <= 0 {
			return 0
		}
		return int(int64(width) * int64(t.Sub(start)) / int64(total))
	}
	from := min(at(s.Start), width-1)
	to := max(from+1, min(at(s.End), width))
	fill := strings.Repeat("█", to-from)
	if to-from == 1 && s.Duration()*time.Duration(2*width) < total {
		fill = "▏" // shorter than half a column
	}
	color := "36"
	if s.Error != "" {
		color = "31"
	}
	return strings.Repeat("·", from) + d.paint(color, fill) + strings.Repeat("·", width-to)
}

func (d Draw) paint(color, s string) string {
	if !d.Color {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

func axis(width int, total time.Duration) string {
	right := millis(total)
	middle := millis(total / 2)
	line := []rune(strings.Repeat(" ", width))
	put := func(at int, s string) {
		for i, r := range s {
			if at+i >= 0 && at+i < len(line) {
				line[at+i] = r
			}
		}
	}
	put(0, "0")
	put(width/2-len(middle)/2, middle)
	put(width-len(right), right)
	return string(line)
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// share is how much of the total time a step had to itself.
type share struct {
	name string
	time time.Duration
}

// dominant returns, for every step, the time during which it was the innermost step running; among
// steps that run in parallel, that is the one that began last. Time in which no step ran is called
// "(between steps)".
func dominant(spans []Span) []share {
	var cuts []time.Time
	for _, s := range spans {
		cuts = append(cuts, s.Start, s.End)
	}
	slices.SortFunc(cuts, time.Time.Compare)
	sum := map[string]time.Duration{}
	for i := 1; i < len(cuts); i++ {
		from, to := cuts[i-1], cuts[i]
		if !to.After(from) {
			continue
		}
		name := "(between steps)"
		var began time.Time
		for _, s := range spans {
			if !s.Start.After(from) && !s.End.Before(to) && !s.Start.Before(began) {
				name, began = s.Name, s.Start
			}
		}
		sum[name] += to.Sub(from)
	}
	out := make([]share, 0, len(sum))
	for n, t := range sum {
		out = append(out, share{n, t})
	}
	slices.SortFunc(out, func(a, b share) int {
		if a.time != b.time {
			return int(b.time - a.time)
		}
		return strings.Compare(a.name, b.name)
	})
	return out
}

func (d Draw) summary(spans []Span, total time.Duration) string {
	shares := dominant(spans)
	if len(shares) == 0 || total <= 0 {
		return "total " + millis(total)
	}
	top := shares[0]
	return fmt.Sprintf("total %s, dominated by %s: %s (%d %%)",
		millis(total), d.paint("1", top.name), millis(top.time), 100*top.time/total)
}
