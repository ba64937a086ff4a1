package logs

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestWatchTellsOfOneWriteForEachTimeItIsAsked(t *testing.T) {
	w, err := NewWatch()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	told, done := make(chan string, 100), make(chan error, 1)
	go func() { done <- w.Run(ctx, func(path string) { told <- path }) }()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, path := range []string{a, b} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := func(path string) {
		t.Helper()
		if err := w.Next(path); err != nil {
			t.Fatal(err)
		}
	}
	next(a)
	next(a) // asking once more does not give two events
	for range 10 {
		appendTo(t, a, "x")
	}
	if got := <-told; got != a {
		t.Errorf("told of %s", got)
	}
	next(b)
	appendTo(t, a, "x") // nobody has asked again
	appendTo(t, b, "x")
	if got := <-told; got != b {
		t.Errorf("told of %s", got)
	}
	if err := os.Rename(a, filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	next(a) // the file does not exist
	if err := os.WriteFile(a, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next(a)
	appendTo(t, a, "x")
	if got := <-told; got != a {
		t.Errorf("told of %s", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(told) > 0 {
		t.Errorf("told of %s, too", <-told)
	}
}
