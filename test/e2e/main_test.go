package e2e

import (
	"os"
	"testing"

	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) {
	// What collects garbage less often to test faster is not for the daemons (test/run.sh).
	if err := os.Unsetenv("GOGC"); err != nil {
		panic(err)
	}
	os.Exit(panics.Watch(m).Run())
}
