// Package ginkgo reads the reports of upstream's test programs, which are ginkgo suites.
package ginkgo

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Report holds what is read from a suite's report.
type Report struct {
	Specs []Spec `json:"SpecReports"`
}

// Spec is a test and its outcome.
type Spec struct {
	Containers []string `json:"ContainerHierarchyTexts"`
	Text       string   `json:"LeafNodeText"`
	Type       string   `json:"LeafNodeType"`
	State      string   `json:"State"`
	RunTime    time.Duration
	Failure    struct{ Message string }
}

// Name returns the spec's text, preceded by those of the containers around it that have any: what a focus is compared with.
func (s Spec) Name() string {
	texts := slices.DeleteFunc(slices.Clone(append(s.Containers, s.Text)), func(t string) bool { return t == "" })
	return strings.Join(texts, " ")
}

// Ran reports whether the spec was in focus.
func (s Spec) Ran() bool { return s.State != "skipped" || s.Failure.Message != "" }

// Exceptions are the reasons why specs may fail, by a part of their names.
type Exceptions map[string]string

func (e Exceptions) reason(s Spec) string {
	for text, why := range e {
		if strings.Contains(s.Name(), text) {
			return why
		}
	}
	return ""
}

// Read reads a report in JSON.
func Read(path string) (*Report, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the tests wrote no report: %w", err)
	}
	var all []Report
	if err := json.Unmarshal(doc, &all); err != nil {
		return nil, fmt.Errorf("read report %s: %w", path, err)
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("report %s does not have one suite", path)
	}
	return &all[0], nil
}

// Failed reports whether the spec neither passed nor was left out.
func (s Spec) Failed() bool {
	return s.State != "passed" && s.State != "skipped" && s.State != "pending"
}

// Print prints what happened and returns false if a spec failed without an excuse.
func (r *Report) Print(w io.Writer, name string, excuses Exceptions) (ok bool) {
	count := map[string]int{}
	ok = true
	for _, sp := range r.Specs {
		message, _, _ := strings.Cut(strings.TrimSpace(sp.Failure.Message), "\n")
		switch {
		case sp.Type != "It" && !sp.Failed():
			continue
		case sp.Failed() && excuses.reason(sp) != "":
			count["excused"]++
			fmt.Fprintf(w, "EXCUSED %s: %s\n", sp.Name(), excuses.reason(sp))
			continue
		case sp.Failed():
			ok = false
			fmt.Fprintf(w, "FAIL %s: %.400s\n", sp.Name(), strings.Join(strings.Fields(sp.Failure.Message), " "))
		case sp.State == "skipped" && message != "": // without a message it was out of focus
			fmt.Fprintf(w, "SKIP %s: %s\n", sp.Name(), message)
		case sp.State == "passed":
			fmt.Fprintf(w, "ok   %s (%.1fs)\n", sp.Name(), sp.RunTime.Seconds())
		default:
			continue
		}
		count[sp.State]++
	}
	fmt.Fprintf(w, "%s: %d passed, %d failed, %d excused, %d skipped\n", name,
		count["passed"], count["failed"]+count["panicked"]+count["timedout"]+count["interrupted"]+count["aborted"], count["excused"], count["skipped"])
	return ok && count["passed"] > 0
}
