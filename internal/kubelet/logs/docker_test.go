package logs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

// dockerSample is what Docker's driver json-file writes: the third line has no end yet.
const dockerSample = `{"log":"one\n","stream":"stdout","time":"2026-01-01T00:00:01.5Z"}
{"log":"two\n","stream":"stderr","time":"2026-01-01T00:00:02Z"}
{"log":"thr","stream":"stdout","time":"2026-01-01T00:00:03Z"}
{"log":"ee\n","stream":"stdout","time":"2026-01-01T00:00:03Z"}
{"log":"no stream\n","time":"2026-01-01T00:00:03Z"}
{"log":
`

var dockerID = strings.Repeat("0123456789abcdef", 4)

// dockerLogOf returns a log as cri-dockerd makes it, and Docker's file.
func dockerLogOf(t *testing.T, id string) (log, file string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "ns_pod_uid", "c", "0.log")
	file = filepath.Join(t.TempDir(), "containers", id, id+"-json.log")
	for _, err := range []error{
		os.MkdirAll(filepath.Dir(log), 0o755), os.MkdirAll(filepath.Dir(file), 0o755),
		os.WriteFile(file, []byte(dockerSample), 0o600), os.Symlink(file, log),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return log, file
}

func TestLogOfDocker(t *testing.T) {
	log, _ := dockerLogOf(t, dockerID)
	for _, tc := range []struct {
		o         Options
		out, errs string
	}{
		{Options{}, "one\nthree\n", "two\n"},
		{Options{Since: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)}, "three\n", "two\n"},
		{Options{Tail: ptr.To[int64](6), Timestamps: true, Limit: ptr.To[int64](30)}, "2026-01-01T00:00:01.5Z one\n", "202"},
	} {
		tc.o.ID = dockerID
		var out, errs bytes.Buffer
		if err := Read(t.Context(), log, tc.o, &out, &errs); err != nil || out.String() != tc.out || errs.String() != tc.errs {
			t.Errorf("%q and %q, %v; want %q and %q", &out, &errs, err, tc.out, tc.errs)
		}
	}
	if got := Tail(log, dockerID, 80, 3); got != "ee\n" {
		t.Errorf("the end of it: %q", got)
	}
}

// TestFollowLogOfDocker: the file is elsewhere, and the link to it comes last.
func TestFollowLogOfDocker(t *testing.T) {
	log, file := dockerLogOf(t, dockerID)
	if err := os.Rename(log, log+"-later"); err != nil {
		t.Fatal(err)
	}
	out := &lines{got: make(chan struct{}, 100)}
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Read(t.Context(), log, Options{ID: dockerID, Follow: true, Ended: ended}, out, nil) }()
	if err := os.Rename(log+"-later", log); err != nil {
		t.Fatal(err)
	}
	<-out.got
	<-out.got
	appendTo(t, file, `{"log":"four\n","stream":"stdout","time":"2026-01-01T00:00:04Z"}`+"\n")
	<-out.got
	close(ended)
	if err := <-done; err != nil || out.String() != "one\nthree\nfour\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

// TestOnlyTheContainersOwnLogIsDockers: a pod that may write to the folder of logs gets nothing else
// by a link that looks like Docker's.
func TestOnlyTheContainersOwnLogIsDockers(t *testing.T) {
	other := strings.Repeat("f", 64)
	log, file := dockerLogOf(t, other)
	_, outside := hostileLog(t)
	for what, change := range map[string]func() error{
		"of another container": func() error { return nil },
		"by a link on the way": func() error {
			dir := filepath.Join(t.TempDir(), "containers", dockerID)
			return errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(outside, filepath.Join(dir, dockerID+"-json.log")),
				os.Remove(log), os.Symlink(filepath.Join(dir, dockerID+"-json.log"), log))
		},
		"with a way back": func() error {
			return errors.Join(os.Remove(log), os.Symlink(filepath.Dir(file)+"/containers/"+dockerID+"/"+dockerID+"-json.log/../../..", log))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Read(t.Context(), log, Options{ID: dockerID}, &out, &out); err == nil || out.Len() != 0 {
			t.Errorf("%s: read %q, %v", what, &out, err)
		}
	}
}

// TestDockerRotatesItsLogs: cri-dockerd cannot make it open a new one.
func TestDockerRotatesItsLogs(t *testing.T) {
	log, file := dockerLogOf(t, dockerID)
	rt := reopen(func() error { return errors.New("not supported") })
	if ok, err := Rotate(t.Context(), rt, dockerID, log, Limits{MaxSize: 1, MaxFiles: 2}, time.Now()); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if target, err := os.Readlink(log); err != nil || target != file {
		t.Errorf("the log leads to %q, %v", target, err)
	}
}
