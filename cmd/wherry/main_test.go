package main

import (
	"os"
	"os/exec"
	"testing"

	"wherry.dev/test/panics"
)

// asWherry, when set, makes this program wherry itself.
const asWherry = "WHERRY_TEST_AS_WHERRY"

func TestMain(m *testing.M) {
	if os.Getenv(asWherry) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(panics.Watch(m).Run())
}

// wherry returns a command that runs this program as wherry, with variables added to the
// environment.
func wherry(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asWherry+"=1"), env...)
	return cmd
}
