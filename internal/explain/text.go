package explain

import (
	"fmt"
	"strings"
	"time"

	"wherry.dev/internal/api/report"
)

// Text writes an explanation for people.
func (x *Explanation) Text(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s", strings.ToLower(x.Kind), x.Namespace, x.Name)
	if x.Node != "" {
		fmt.Fprintf(&b, " on node %s", x.Node)
	}
	fmt.Fprintf(&b, ": %s%s\n%s\n", x.State, ago(x.Since, now), x.Summary)
	for _, w := range x.Waits {
		fmt.Fprintf(&b, "\n  %s%s\n", w.Step, ago(w.Since, now))
		if w.Said != "" {
			fmt.Fprintf(&b, "    status: %s\n", strings.TrimSpace(w.Said))
		}
		if w.Retry != nil {
			fmt.Fprintf(&b, "    next try: %s\n", in(*w.Retry, now))
		}
		fmt.Fprintf(&b, "    continues when: %s\n", w.Next)
	}
	for i, g := range x.Nodes {
		if i == 0 {
			b.WriteString("\n  nodes:\n")
		}
		writeGroup(&b, g)
	}
	if x.Choice != nil {
		writeChoice(&b, x.Choice)
	}
	for i, n := range x.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	for i := range x.Pods {
		b.WriteString("\n" + indent(x.Pods[i].Text(now)))
	}
	return b.String()
}

func writeGroup(b *strings.Builder, g report.NodeGroup) {
	names := strings.Join(g.Names, ", ")
	if more := g.Count - len(g.Names); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	why := strings.Join(g.Reasons, ", ")
	if g.Plugin == "" {
		why = "it fits now"
	} else {
		why += " (" + g.Plugin + ")"
	}
	fmt.Fprintf(b, "    %s: %s\n", names, why)
	for i, fix := range g.Fixes {
		word := "would help"
		if i > 0 {
			word = "        or"
		}
		fmt.Fprintf(b, "      %s: %s\n", word, fix)
	}
}

func writeChoice(b *strings.Builder, c *report.Choice) {
	for i, n := range c.Best {
		if i == 0 {
			b.WriteString("\n  the best nodes, and what plugins gave them (up to 100, times their weight):\n")
		}
		var parts []string
		for _, p := range n.Parts {
			parts = append(parts, fmt.Sprintf("%s %d", p.Plugin, p.Score))
		}
		fmt.Fprintf(b, "    %s: %d = %s\n", n.Node, n.Total, strings.Join(parts, " + "))
	}
}

func ago(since *time.Time, now time.Time) string {
	if since == nil {
		return ""
	}
	return ", for " + max(now.Sub(*since), 0).Round(time.Second).String()
}

func in(t, now time.Time) string {
	if d := t.Sub(now).Round(time.Second); d > 0 {
		return fmt.Sprintf("in %v, at %s", d, t.UTC().Format("15:04:05 UTC"))
	}
	return "now"
}

// indent moves each line that has words to the right.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// listed names a few, and counts the others.
func listed(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// count writes a number and what it counts: "1 pod", "2 pods".
func count[T int | int32](n T, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
