package cri

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-client/pkg/logs"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/oci"
)

// rotate does what the kubelet does to a log that has grown too large. It returns false if the
// container has exited.
func (n *node) rotate(ctx context.Context, id, path, to string) (bool, error) {
	if err := os.Rename(path, to); err != nil {
		return false, err
	}
	err := n.run.ReopenContainerLog(ctx, id)
	if err == nil {
		return true, nil
	}
	if rerr := os.Rename(to, path); rerr != nil {
		return false, errors.Join(err, rerr)
	}
	if c, cerr := n.container(id); cerr == nil && !c.Running() {
		return false, nil
	}
	return false, err
}

// criLines joins the parts of one stream's lines, in all files of a log.
type criLines struct {
	t       *testing.T
	partial strings.Builder
	parts   int // how many partial lines were read
	visit   func(line string)
}

func (l *criLines) read(path, stream string) {
	l.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), " ", 4)
		if len(f) != 4 || f[2] != "P" && f[2] != "F" || f[1] != "stdout" && f[1] != "stderr" {
			l.t.Fatalf("%s: %q is not in CRI's format", path, sc.Text())
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			l.t.Fatal(err)
		}
		if len(f[3]) > 16<<10 {
			l.t.Fatalf("%s: a part of %d bytes", path, len(f[3]))
		}
		if f[1] != stream {
			continue
		}
		if f[2] == "P" {
			l.parts++
			l.partial.WriteString(f[3])
			continue
		}
		l.visit(l.partial.String() + f[3])
		l.partial.Reset()
	}
	if err := sc.Err(); err != nil {
		l.t.Fatal(err)
	}
}

func TestAMillionLinesAcrossRotations(t *testing.T) {
	const lines, long, parts = 1_000_000, 300, 10
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", fmt.Sprintf(`
		awk 'BEGIN { for (i = 1; i <= %d; i++) { s = i ":"; while (length(s) < i * 100) s = s "abcdefghijklmnopqrstuvwxyz"; print s } }' >&2 &
		for i in $(seq %d); do
			while ! [ -e /go$i ]; do sleep 0.01; done
			seq $(((i - 1) * %d + 1)) $((i * %[3]d))
		done; wait`, long, parts, lines/parts))
	path := n.status(id).LogPath
	var files []string
	for {
		if part := len(files) + 1; part <= parts { // each part begins while the log is rotated
			n.touch(id, fmt.Sprint("/go", part))
		}
		to := path + "." + strconv.Itoa(len(files))
		more, err := n.rotate(t.Context(), id, path, to)
		n.must(err)
		if !more {
			break
		}
		files = append(files, to)
	}
	if st := n.waitExit(id); st.ExitCode != 0 {
		t.Fatalf("the writer: %+v", st)
	}
	files = append(files, path)
	if len(files) < parts { // the last part may be written before its rotation
		t.Errorf("only %d rotations", len(files)-1)
	}
	t.Logf("%d rotations", len(files)-1)

	var got int
	out := &criLines{t: t, visit: func(line string) {
		if got++; line != strconv.Itoa(got) {
			t.Fatalf("line %d is %q", got, line)
		}
	}}
	var gotLong int
	errs := &criLines{t: t, visit: func(line string) {
		gotLong++
		number, text, _ := strings.Cut(line, ":")
		want := strings.Repeat("abcdefghijklmnopqrstuvwxyz", len(text)/26)
		if number != strconv.Itoa(gotLong) || text != want || len(line) < gotLong*100 {
			t.Fatalf("long line %d has %d bytes and begins with %.20q", gotLong, len(line), line)
		}
	}}
	for _, f := range files {
		out.read(f, "stdout")
		errs.read(f, "stderr")
	}
	if got != lines || gotLong != long || out.partial.Len()+errs.partial.Len() > 0 {
		t.Errorf("%d lines of %d, %d long ones of %d, %d bytes without an end", got, lines, gotLong, long, out.partial.Len()+errs.partial.Len())
	}
	if errs.parts < long/2 {
		t.Errorf("only %d parts of long lines", errs.parts)
	}
}

// The kubelet reads logs with this library: it must return what was written, however conmon has
// split the lines.
func TestKubeletsReaderJoinsLongLines(t *testing.T) {
	p := newNode(t).pod()
	for i, size := range []int{1, 8191, 8192, 8193, 16384, 16385, 100_000} {
		cfg := containerConfig("c", "sh", "-c", fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo; printf end`, size))
		cfg.Metadata.Attempt = uint32(i)
		cfg.LogPath = fmt.Sprintf("c/%d.log", i)
		id := p.start(cfg)
		st := p.waitExit(id)
		var out, errOut bytes.Buffer
		p.must(logs.ReadLogs(t.Context(), st.LogPath, id, &logs.LogOptions{}, p.run, &out, &errOut))
		if want := strings.Repeat("x", size) + "\nend"; out.String() != want {
			t.Errorf("a line of %d bytes: %d bytes, want %d", size, out.Len(), len(want))
		}
	}
}

// Reopening a log without a rotation used to replace it with an empty one.
func TestReopenWithoutRotationKeepsTheLog(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", `echo line 1; while ! [ -e /go ]; do sleep 0.02; done; echo line 2`)
	path := n.status(id).LogPath
	for range 3 {
		n.must(n.run.ReopenContainerLog(t.Context(), id))
	}
	rotated := path + ".1"
	if ok, err := n.rotate(t.Context(), id, path, rotated); err != nil || !ok {
		t.Fatal(ok, err)
	}
	for range 3 {
		n.must(n.run.ReopenContainerLog(t.Context(), id))
	}
	n.touch(id, "/go")
	n.waitExit(id)
	checkLines(t, logText(t, rotated, "stdout")+logText(t, path, "stdout"))
	if err := n.run.ReopenContainerLog(t.Context(), id); err == nil || !strings.Contains(err.Error(), "is not running") {
		t.Errorf("the log of a container that has ended: %v", err)
	}
}

func TestReopenSparesAFileThatIsNotTheContainers(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", `sleep 1000`)
	path := n.status(id).LogPath
	n.must(os.Rename(path, path+".1"))
	n.must(os.WriteFile(path, []byte("precious"), 0o600))
	if err := n.run.ReopenContainerLog(t.Context(), id); err == nil || !strings.Contains(err.Error(), "not the container's own") {
		t.Errorf("got %v", err)
	}
	if doc, err := os.ReadFile(path); err != nil || string(doc) != "precious" {
		t.Errorf("the file holds %q, %v", doc, err)
	}
	n.must(os.WriteFile(path, nil, 0o600)) // as logrotate's "create" leaves one
	n.must(n.run.ReopenContainerLog(t.Context(), id))
}

// TestLogWrittenElsewhere: a pod that collects logs puts a link or a pipe where the next log will
// be. conmon writes as root, and would hang on a pipe.
func TestLogWrittenElsewhere(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	victim := filepath.Join(t.TempDir(), "root's")
	n.must(os.WriteFile(victim, []byte("precious"), 0o600))
	for name, plant := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(victim, path) },
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		cfg := containerConfig(name, "sh", "-c", "echo to a log; sleep 1000")
		log := filepath.Join(p.cfg.GetLogDirectory(), cfg.GetLogPath())
		n.must(os.MkdirAll(filepath.Dir(log), 0o755))
		n.must(plant(log))
		if _, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
		n.must(os.Remove(log))
		id := p.start(cfg)
		n.must(plant(log + ".tmp"))
		if ok, err := n.rotate(t.Context(), id, log, log+".1"); err != nil || !ok {
			t.Errorf("%s in the way of a rotation: %v", name, err)
		}
	}
	if doc, err := os.ReadFile(victim); err != nil || string(doc) != "precious" {
		t.Errorf("the file holds %q, %v", doc, err)
	}
}

// conmon used to carry the command out after the caller had given up and had given the log its
// name back: the log was lost.
func TestReopenThatTimesOutTakesNothing(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", `i=0; while ! [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.01; done`)
	path := n.status(id).LogPath
	monitor, err := oci.ReadPID(n.bundle(id).MonitorPIDFile())
	n.must(err)
	n.must(unix.Kill(monitor, unix.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = n.rotate(ctx, id, path, path+".1")
	if !errors.Is(err, context.DeadlineExceeded) && !crierror.IsTimeout(err) {
		t.Errorf("with a conmon that hangs: %v", err)
	}
	n.must(unix.Kill(monitor, unix.SIGCONT))
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
	ok, err := n.rotate(t.Context(), id, path, path+".1")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	n.touch(id, "/stop")
	n.waitExit(id)
	checkLines(t, logText(t, path+".1", "stdout")+logText(t, path, "stdout"))
}

func TestReopenEndsWithConmon(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", `echo line 1; echo line 2; sleep 1000`)
	path := n.status(id).LogPath
	waitFor(t, "the lines", func() bool { return strings.Count(logText(t, path, "stdout"), "\n") == 2 })
	monitor, err := oci.ReadPID(n.bundle(id).MonitorPIDFile())
	n.must(err)
	n.must(unix.Kill(monitor, unix.SIGSTOP))
	answer := make(chan error, 1)
	go func() {
		_, err := n.rotate(t.Context(), id, path, path+".1")
		answer <- err
	}()
	waitFor(t, "the reopening", func() bool { return disk.Exists(path + ".tmp") })
	n.must(unix.Kill(monitor, unix.SIGKILL))
	n.must(<-answer) // the container has exited, and its log has its name
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
	if st := n.waitExit(id); st.Reason != "ContainerStatusUnknown" {
		t.Errorf("%+v", st)
	}
	checkLines(t, logText(t, path, "stdout"))
}
