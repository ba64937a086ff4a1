package podops

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// TestTerminationMessages: the end of a long one, and of the log if the policy says so.
func TestTerminationMessages(t *testing.T) {
	o := &Ops{Config: Config{Dirs: criconfig.Dirs{Root: t.TempDir()}}}
	log := filepath.Join(t.TempDir(), "0.log")
	var lines strings.Builder
	for i := range 200 {
		_, _ = fmt.Fprintf(&lines, "2026-11-21T10:00:00.000000000Z stdout F line %d\n", i)
	}
	if err := os.WriteFile(log, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	const fallback = v1.TerminationMessageFallbackToLogsOnError
	wide := filepath.Join(t.TempDir(), "1.log")
	if err := os.WriteFile(wide, []byte("2026-11-21T10:00:00.000000000Z stderr F "+strings.Repeat("x", 3000)+"end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		file   string
		policy v1.TerminationMessagePolicy
		exit   int32
		reason string
		log    string
		first  string // of the message
		size   int
	}{
		"nothing":                 {exit: 1, log: log},
		"file":                    {file: "bye", exit: 1, policy: fallback, log: log, first: "bye", size: 3},
		"long file":               {file: strings.Repeat("a", 5000) + strings.Repeat("b", 4096), first: "b", size: 4096},
		"log":                     {policy: fallback, exit: 1, log: log, first: "line 120\n", size: 80 * len("line 120\n")},
		"wide log":                {policy: fallback, exit: 1, log: wide, first: "x", size: 2048},
		"log after success":       {policy: fallback, log: log},
		"log of what never ran":   {policy: fallback, exit: 128, reason: "ContainerCannotRun", log: log},
		"log that is not there":   {policy: fallback, exit: 1, log: log + ".gone"},
		"other policy after fail": {policy: v1.TerminationMessageReadFile, exit: 1, log: log},
	} {
		path := o.Dirs.MessageFile("u", "c", 0)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
			t.Fatal(err)
		}
		got := o.FinalMessage("u", &podplan.Container{Name: "c", ExitCode: tc.exit, Reason: tc.reason}, tc.policy, tc.log)
		if len(got) != tc.size || !strings.HasPrefix(got, tc.first) {
			t.Errorf("%s: %d bytes, %.20q", name, len(got), got)
		}
	}
}
