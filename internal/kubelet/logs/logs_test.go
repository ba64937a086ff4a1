package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

const sample = "2026-01-01T00:00:01.000000001Z stdout F one\n" +
	"2026-01-01T00:00:02.5Z stderr F two\n" +
	"not a line\n" +
	"2026-01-01T00:00:03Z stdout P thr\n" +
	"2026-01-01T00:00:03Z stdout F ee\n" +
	"2026-01-01T00:00:04Z stdout F four\n"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, tc := range map[string]struct {
		o        Options
		out, err string
	}{
		"all":        {Options{}, "one\nthree\nfour\n", "two\n"},
		"tail":       {Options{Tail: ptr.To[int64](1)}, "four\n", ""},
		"tail none":  {Options{Tail: ptr.To[int64](0)}, "", ""},
		"tail many":  {Options{Tail: ptr.To[int64](99)}, "one\nthree\nfour\n", "two\n"},
		"since":      {Options{Since: at("2026-01-01T00:00:03Z")}, "three\nfour\n", ""},
		"limit":      {Options{Limit: ptr.To[int64](6)}, "one\n", "tw"},
		"timestamps": {Options{Tail: ptr.To[int64](1), Timestamps: true}, "2026-01-01T00:00:04Z four\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if err := Read(t.Context(), write(t, sample), tc.o, &out, &errs); err != nil {
				t.Fatal(err)
			}
			if out.String() != tc.out || errs.String() != tc.err {
				t.Errorf("got %q and %q, want %q and %q", out.String(), errs.String(), tc.out, tc.err)
			}
		})
	}
	if err := Read(t.Context(), "/nonexistent/0.log", Options{}, &bytes.Buffer{}, nil); !os.IsNotExist(err) {
		t.Errorf("a log that is not there: %v", err)
	}
}

// lines is a writer that reports each line.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
	got chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		for range bytes.Count(p, []byte("\n")) { // several may come at once
			l.got <- struct{}{}
		}
	}()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

type reopen func() error

func (f reopen) ReopenContainerLog(context.Context, string) error { return f() }

func TestFollowGoesOnAcrossARotation(t *testing.T) {
	path := write(t, "2026-01-01T00:00:01Z stdout F one\n")
	out := &lines{got: make(chan struct{}, 100)}
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Read(t.Context(), path, Options{Follow: true, Ended: ended}, out, nil) }()
	<-out.got
	appendTo(t, path, "2026-01-01T00:00:02Z stdout F two\n")
	<-out.got
	ok, err := Rotate(t.Context(), reopen(func() error { return os.WriteFile(path, nil, 0o600) }), "id", path,
		Limits{MaxSize: 1, MaxFiles: 3}, time.Now())
	if err != nil || !ok {
		t.Fatalf("Rotate: %v, %v", ok, err)
	}
	appendTo(t, path, "2026-01-01T00:00:03Z stdout F three\n")
	<-out.got
	close(ended)
	if err := <-done; err != nil || out.String() != "one\ntwo\nthree\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// TestAFollowerThatLeavesEndsTheRead: of a log to which nothing is written, too. The read went round and round until the
// container ended.
func TestAFollowerThatLeavesEndsTheRead(t *testing.T) {
	for name, entries := range map[string]string{"a log": sample, "an empty one": "", "none yet": "-"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if entries != "-" {
				if err := os.WriteFile(path, []byte(entries), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Read(ctx, path, Options{Follow: true}, io.Discard, io.Discard) }()
			time.Sleep(10 * time.Millisecond) // it waits by then, or will find that nobody reads
			leave()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the read goes on")
			}
		})
	}
}

// TestFollowWithTailAndSinceGoesOnAcrossARotation: what was left out at first says nothing about
// what is written later.
func TestFollowWithTailAndSinceGoesOnAcrossARotation(t *testing.T) {
	for name, tc := range map[string]struct {
		o    Options
		want string // of the first file
	}{
		"tail":           {Options{Tail: ptr.To[int64](1)}, "three\n"},
		"tail none":      {Options{Tail: ptr.To[int64](0)}, ""},
		"since":          {Options{Since: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)}, "two\nthree\n"},
		"tail and since": {Options{Tail: ptr.To[int64](2), Since: time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)}, "three\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stdout F two\n2026-01-01T00:00:03Z stdout F three\n")
			out := &lines{got: make(chan struct{}, 100)}
			ended, done := make(chan struct{}), make(chan error, 1)
			tc.o.Follow, tc.o.Ended = true, ended
			go func() { done <- Read(t.Context(), path, tc.o, out, nil) }()
			for range strings.Count(tc.want, "\n") {
				<-out.got
			}
			if tc.want == "" { // it has reached the end once it writes what follows
				appendUntil(t, path, out)
			}
			ok, err := Rotate(t.Context(), reopen(func() error {
				return os.WriteFile(path, []byte("2026-01-01T00:00:04Z stdout F four\n"), 0o600)
			}), "id", path, Limits{MaxSize: 1, MaxFiles: 3}, time.Now())
			if err != nil || !ok {
				t.Fatalf("Rotate: %v, %v", ok, err)
			}
			<-out.got
			appendTo(t, path, "2026-01-01T00:00:05Z stdout F five\n")
			<-out.got
			close(ended)
			got := strings.ReplaceAll(out.String(), "more\n", "")
			if err := <-done; err != nil || got != tc.want+"four\nfive\n" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// appendUntil writes lines until one comes out.
func appendUntil(t *testing.T, path string, out *lines) {
	t.Helper()
	for {
		appendTo(t, path, "2026-01-01T00:00:03Z stdout F more\n")
		select {
		case <-out.got:
			for len(out.got) > 0 {
				<-out.got
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// slow is a writer that waits until it may take its first piece.
type slow struct {
	may chan struct{}
	buf bytes.Buffer
	in  chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	select {
	case s.in <- struct{}{}:
	default:
	}
	<-s.may
	return s.buf.Write(p)
}

func TestFollowBySlowClientMissesNoRotatedFile(t *testing.T) {
	path := write(t, "2026-01-01T00:00:01Z stdout F one\n")
	out := &slow{may: make(chan struct{}), in: make(chan struct{}, 1)}
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Read(t.Context(), path, Options{Follow: true, Ended: ended}, out, nil) }()
	<-out.in // it hangs in its first write
	for i, text := range []string{"two", "three", "four"} {
		now := time.Date(2026, 1, 1, 0, 0, 10*i, 0, time.UTC)
		next := fmt.Sprintf("2026-01-01T00:00:%02dZ stdout F %s\n", 10*i+2, text)
		ok, err := Rotate(t.Context(), reopen(func() error { return os.WriteFile(path, []byte(next), 0o600) }), "id", path,
			Limits{MaxSize: 1, MaxFiles: 9}, now)
		if err != nil || !ok {
			t.Fatalf("Rotate: %v, %v", ok, err)
		}
	}
	close(ended)
	close(out.may)
	if err := <-done; err != nil || out.buf.String() != "one\ntwo\nthree\nfour\n" {
		t.Errorf("got %q, %v", out.buf.String(), err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// pieces counts what is written to it.
type pieces struct {
	bytes.Buffer
	n int
}

func (p *pieces) Write(b []byte) (int, error) { p.n++; return p.Buffer.Write(b) }

// Each line of a flood used to be a packet of its own: a client that followed was ten times slower
// than the container, and the log was gone before it was read.
func TestAFloodIsPassedOnInFewPieces(t *testing.T) {
	const lines = 20_000
	var text, want strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "2026-01-01T00:00:01.5Z stdout F line %d\n", i)
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var out pieces
	if err := Read(t.Context(), write(t, text.String()), Options{}, &out, nil); err != nil {
		t.Fatal(err)
	}
	if out.String() != want.String() || out.n > lines/100 {
		t.Errorf("%d bytes of %d in %d pieces", out.Len(), want.Len(), out.n)
	}
}

func TestTwoRotationsInOneSecondLoseNothing(t *testing.T) {
	path := write(t, "2026-01-01T00:00:01Z stdout F one\n")
	rt := reopen(func() error { return os.WriteFile(path, []byte("2026-01-01T00:00:02Z stdout F two\n"), 0o600) })
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2 {
		if ok, err := Rotate(t.Context(), rt, "id", path, Limits{MaxSize: 1, MaxFiles: 9}, now); err != nil || !ok {
			t.Errorf("rotation %d: %v, %v", i, ok, err)
		}
	}
	for name, want := range map[string]string{".20260101-000000": "one", ".20260101-000000-001": "two"} {
		got, err := os.ReadFile(path + name)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if err := compress(path + ".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	if old, err := rotated(path); err != nil || len(old) != 2 || !strings.HasSuffix(old[0], "-000000.gz") {
		t.Errorf("the older one is not first: %v, %v", old, err)
	}
}

func TestRotateKeepsSoManyFiles(t *testing.T) {
	path := write(t, sample)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 6 {
		rt := reopen(func() error { return os.WriteFile(path, []byte(sample), 0o600) })
		if ok, err := Rotate(t.Context(), rt, "id", path, Limits{MaxSize: 10, MaxFiles: 3}, now.Add(time.Duration(i)*time.Second)); err != nil || !ok {
			t.Fatalf("Rotate: %v, %v", ok, err)
		}
		if err := Compress(path); err != nil {
			t.Fatal(err)
		}
	}
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) != 3 || !strings.HasSuffix(all[1], ".gz") {
		t.Errorf("files: %v, %v", all, err)
	}
}

// TestLogOfAContainerThatEndedDuringARotation: the process was killed between the rename and the
// new file, and before that while it compressed; then the container ended.
func TestLogOfAContainerThatEndedDuringARotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns_pod_uid", "c", "0.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		".20260101-000000": "oldest", ".20260101-000000.tmp": "half of it",
		".20260101-000001": "old", ".20260101-000001.gz": "compressed, and not yet removed",
		".20260101-000002": "before", ".20260101-000003": "last", ".tmp": "",
	} {
		if err := os.WriteFile(path+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to do
		if err := Settle(path); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "last" {
			t.Errorf("the log is %q, %v", text, err)
		}
		all, err := filepath.Glob(path + "*")
		want := []string{path, path + ".20260101-000000.gz", path + ".20260101-000001.gz", path + ".20260101-000002"}
		if err != nil || !slices.Equal(all, want) {
			t.Errorf("files: %v, %v", all, err)
		}
	}
}

// TestLogIsReadInTheMiddleOfARotation: while the runtime opened the new file, the log used to be
// reported as missing.
func TestLogIsReadInTheMiddleOfARotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	for name, text := range map[string]string{
		".20260101-000000.gz": "older, and compressed",
		".20260101-000001":    "2026-01-01T00:00:01Z stdout F one\n", ".tmp": "",
		".20260101-000002": "2026-01-01T00:00:02Z stdout F two\n",
	} {
		if err := os.WriteFile(path+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := Read(t.Context(), path, Options{}, &out, nil); err != nil || out.String() != "two\n" {
		t.Errorf("%q, %v", &out, err)
	}
	follows := &lines{got: make(chan struct{}, 100)}
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Read(t.Context(), path, Options{Follow: true, Ended: ended}, follows, nil) }()
	<-follows.got
	if err := os.WriteFile(path, []byte("2026-01-01T00:00:03Z stdout F three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	<-follows.got
	close(ended)
	if err := <-done; err != nil || follows.String() != "two\nthree\n" {
		t.Errorf("followed: %q, %v", follows, err)
	}
}

// TestFollowWhileTheNextFileIsRotated: the file to switch to may be one of the older files by the
// time those are listed. It must be read once.
func TestFollowWhileTheNextFileIsRotated(t *testing.T) {
	path := write(t, "")
	for name, text := range map[string]string{
		".20260101-000000": "2026-01-01T00:00:00Z stdout F zero\n",
		".20260101-000001": "2026-01-01T00:00:01Z stdout F one\n",
		".20260101-000002": "2026-01-01T00:00:02Z stdout F two\n",
		".20260101-000003": "2026-01-01T00:00:03Z stdout F three\n",
	} {
		if err := os.WriteFile(path+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	r := &reader{path: path, stdout: &out, left: -1}
	defer r.close()
	var next *os.File
	for name, f := range map[string]**os.File{".20260101-000000": &r.file, ".20260101-000002": &next} {
		var err error
		if *f, err = open(path + name); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := r.goOver(next); !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	r.file = next
	if err := r.drain(r.file); err != nil || out.String() != "zero\none\ntwo\n" {
		t.Errorf("%q, %v", &out, err)
	}
}

func TestARemovedLogIsOpenedAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	rt := reopen(func() error { return os.WriteFile(path, nil, 0o600) })
	if ok, err := Rotate(t.Context(), rt, "id", path, Limits{MaxSize: 1, MaxFiles: 2}, time.Now()); ok || err != nil || !taken(path) {
		t.Errorf("%v, %v, %v", ok, err, taken(path))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	gone := reopen(func() error { return os.ErrProcessDone })
	if _, err := Rotate(t.Context(), gone, "id", path, Limits{MaxSize: 1, MaxFiles: 2}, time.Now()); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the error is lost: %v", err)
	}
}

func TestTail(t *testing.T) {
	if got := Tail(write(t, sample), "", 2, 100); got != "ee\nfour\n" {
		t.Errorf("got %q", got)
	}
	if got := Tail(write(t, sample), "", 80, 4); got != "our\n" {
		t.Errorf("got %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, l := range strings.SplitAfter(sample, "\n") {
		f.Add([]byte(l))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, ok := parse(line)
		if ok && (e.stream != "stdout" && e.stream != "stderr" || !bytes.Contains(line, e.text)) {
			t.Errorf("%q became %+v", line, e)
		}
	})
}

// Reading the last line of a log that was growing used to return everything that was added
// meanwhile, too; reading the whole of a log that grew faster than it was read never ended.
func TestReadEndsWhereTheLogEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	line := "2026-11-22T10:00:00Z stdout F a line\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(line, 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[int]Options{1: {Tail: new(int64(1))}, 0: {Tail: new(int64(0))}, 10: {}} {
		grows := &growing{t: t, path: path, line: line}
		if err := Read(t.Context(), path, o, grows, grows); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(grows.text.String(), "\n"); got != want {
			t.Errorf("%d lines, want %d", got, want)
		}
		if err := os.Truncate(path, int64(10*len(line))); err != nil {
			t.Fatal(err)
		}
	}
}

// growing adds a line to the log each time a part of it has been read.
type growing struct {
	t          *testing.T
	path, line string
	text       strings.Builder
}

func (g *growing) Write(p []byte) (int, error) {
	f, err := os.OpenFile(g.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	_, err = f.WriteString(g.line)
	if err := errors.Join(err, f.Close()); err != nil || g.text.Len() > 1<<20 {
		return 0, errors.Join(err, errors.New("it does not end"))
	}
	return g.text.Write(p)
}
