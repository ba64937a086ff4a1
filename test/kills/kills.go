// Package kills runs a part of a test in a process that is killed between two steps.
package kills

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"wherry.dev/internal/failpoint"
)

// At starts the test program again with args, and what it is to do as JSON in the environment variable env. The
// process must die at the failpoint. Its temporary files go with those of t, as it cannot remove them itself.
func At(t *testing.T, failpointName, env string, what any, args ...string) {
	t.Helper()
	doc, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), env+"="+string(doc), failpoint.Env+"="+failpointName, "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the process was not killed at %s: %v\n%s", failpointName, err, out)
	}
}
