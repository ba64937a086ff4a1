package main

import (
	"strings"
	"testing"
)

// A machine that dies halfway must not count as one whose tests passed.
func TestOnlyASaidPassIsAPass(t *testing.T) {
	jobs := options{packages: []string{"internal/a", "internal/b"}}.jobs()
	for console, want := range map[string]string{
		"VM-RESULT internal/a 0\r\nVM-RESULT internal/b 0\r\nVM-DONE\r\n":        "",
		"VM-RESULT internal/a 0\n":                                               "internal/b gave no result",
		"VM-RESULT internal/a 0\n--- FAIL: TestX (0.1s)\nVM-RESULT internal/b 1": "internal/b failed on cgroup v2 (exit 1)",
		"Kernel panic - not syncing":                                             "internal/a gave no result",
	} {
		var shown strings.Builder
		results, err := readConsole(strings.NewReader(console), &shown, telling)
		if err != nil {
			t.Fatal(err)
		}
		err = judge(jobs, results, "log")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", console, err, want)
		}
		if strings.Contains(console, "FAIL") && !strings.Contains(shown.String(), "--- FAIL: TestX") {
			t.Errorf("%q: shown was %q", console, shown.String())
		}
	}
}
