package main

import (
	"context"
	"io"
	"os"
	"testing"
)

// A node that is told to end while it stops for a restart ends.
func TestEndThatIsAskedForDuringARestart(t *testing.T) {
	const env = "WHERRY_TEST_STARTED_ANEW"
	if os.Getenv(env) != "" {
		os.Exit(3) // this is the program that took its place
	}
	t.Setenv(env, "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := startAnew(ctx, newNotifier(io.Discard)); err != nil {
		t.Error(err)
	}
}
