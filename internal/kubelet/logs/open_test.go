package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const secret = "2026-01-01T00:00:00Z stdout F root's\n"

// hostileLog returns the path of a log, and a file elsewhere that only root may read. The pod,
// which may write to the directory of logs, makes the log what the test says.
func hostileLog(t *testing.T) (log, outside string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "ns_pod_uid", "c", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	outside = filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(outside, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return log, outside
}

func TestLogThatIsALinkElsewhere(t *testing.T) {
	log, outside := hostileLog(t)
	if err := os.Symlink(outside, log); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Read(t.Context(), log, Options{}, &out, &out); err == nil || out.Len() != 0 {
		t.Errorf("read %q, %v", &out, err)
	}
	if got := Tail(log, "", 10, 100); got != "" {
		t.Errorf("the end of it: %q", got)
	}
}

func TestLogThatIsAPipe(t *testing.T) {
	log, _ := hostileLog(t)
	if err := unix.Mkfifo(log, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Read(t.Context(), log, Options{}, nil, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
	if got := Tail(log, "", 10, 100); got != "" {
		t.Errorf("the end of it: %q", got)
	}
}

// Whoever may read the logs may read what is compressed; the file it is written to belongs to
// nobody else.
func TestRotationFollowsNoLinkElsewhere(t *testing.T) {
	log, outside := hostileLog(t)
	old := log + ".20260101-000000"
	for _, f := range []error{
		os.WriteFile(log, []byte(strings.Repeat("x", 100)), 0o640),
		os.Symlink(outside, old), os.WriteFile(log+".20260101-000001", []byte("old"), 0o640),
	} {
		if f != nil {
			t.Fatal(f)
		}
	}
	_, err := Rotate(t.Context(), reopen(func() error { return nil }), "id", log, Limits{MaxSize: 10, MaxFiles: 5}, time.Now())
	if err != nil {
		t.Errorf("it keeps the log from being rotated: %v", err)
	}
	if _, err := os.Stat(old + ".gz"); err == nil {
		t.Error("root's file was compressed into the folder of logs")
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != secret {
		t.Errorf("root's file is %q, %v", text, err)
	}
}
