package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// exceptions are the specs that cannot pass on any runtime here, and why;
// docs/conformance.md has them too.
var exceptions = map[string]string{
	"public image with digest should be pulled and removed": "the digest is that of upstream's image, whose exact bytes cannot be built here",
}

// suite is what is read of ginkgo's report.
type suite struct {
	Specs []spec `json:"SpecReports"`
}

type spec struct {
	Containers []string `json:"ContainerHierarchyTexts"`
	Text       string   `json:"LeafNodeText"`
	Type       string   `json:"LeafNodeType"`
	State      string   `json:"State"`
	RunTime    time.Duration
	Failure    struct{ Message string }
}

func (s spec) name() string { return strings.Join(append(s.Containers, s.Text), " ") }

// reason is why this spec may fail; "" when it may not.
func (s spec) reason() string {
	for text, why := range exceptions {
		if strings.Contains(s.name(), text) {
			return why
		}
	}
	return ""
}

func readReport(path string) (*suite, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("critest wrote no report: %w", err)
	}
	var all []suite
	if err := json.Unmarshal(doc, &all); err != nil {
		return nil, fmt.Errorf("read critest's report: %w", err)
	}
	if len(all) != 1 {
		return nil, errors.New("critest's report does not have one suite")
	}
	return &all[0], nil
}

// print tells what happened and returns false when a spec failed without an excuse.
func (s *suite) print(w io.Writer) (ok bool) {
	count := map[string]int{}
	ok = true
	for _, sp := range s.Specs {
		message, _, _ := strings.Cut(strings.TrimSpace(sp.Failure.Message), "\n")
		failed := sp.State != "passed" && sp.State != "skipped" && sp.State != "pending"
		switch {
		case sp.Type != "It" && !failed:
			continue
		case failed && sp.reason() != "":
			count["excused"]++
			fmt.Fprintf(w, "EXCUSED %s: %s\n", sp.name(), sp.reason())
			continue
		case failed:
			ok = false
			fmt.Fprintf(w, "FAIL %s: %.400s\n", sp.name(), strings.Join(strings.Fields(sp.Failure.Message), " "))
		case sp.State == "skipped" && message != "": // without a message the focus left it out
			fmt.Fprintf(w, "SKIP %s: %s\n", sp.name(), message)
		case sp.State == "passed":
			fmt.Fprintf(w, "ok   %s (%.1fs)\n", sp.name(), sp.RunTime.Seconds())
		default:
			continue
		}
		count[sp.State]++
	}
	fmt.Fprintf(w, "critest: %d passed, %d failed, %d excused, %d skipped\n",
		count["passed"], count["failed"]+count["panicked"]+count["timedout"]+count["interrupted"]+count["aborted"], count["excused"], count["skipped"])
	return ok && count["passed"] > 0
}
