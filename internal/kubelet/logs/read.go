package logs

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options select what part of a log to read.
type Options struct {
	// ID of the container. Docker's logs are found by it.
	ID string
	// Tail is how many lines from the end, nil for all.
	Tail *int64
	// Since leaves out older entries.
	Since time.Time
	// Limit on the bytes written, nil for none.
	Limit      *int64
	Timestamps bool
	// Follow continues until Ended is closed and everything is read, across rotations.
	Follow bool
	Ended  <-chan struct{}
}

// maxEntry is the largest entry that is read; runtimes split lines far below it.
const maxEntry = 16 << 20

// together is roughly how much text is written at once.
const together = 64 << 10

// errLimit ends a read that has written as much as it is allowed to.
var errLimit = errors.New("limit reached")

// Read writes a log's text to stdout and stderr; a nil writer drops that stream.
func Read(ctx context.Context, path string, o Options, stdout, stderr io.Writer) error {
	r := &reader{path: path, o: o, stdout: stdout, stderr: stderr, left: -1}
	if o.Limit != nil {
		r.left = *o.Limit
	}
	defer r.close()
	if o.Follow {
		// Watch before the first look, so that nothing is missed in between.
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch log: %w", err)
		}
		defer func() { _ = w.Close() }()
		if err := w.Add(filepath.Dir(path)); err != nil {
			return fmt.Errorf("watch log: %w", err)
		}
		r.watcher = w
	}
	err := r.run(ctx)
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

type reader struct {
	path           string
	target         string // Docker's file, if path is a link to it
	o              Options
	stdout, stderr io.Writer
	watcher        *fsnotify.Watcher
	file           *os.File
	rest           []byte    // a line that is not complete yet
	text           []byte    // of entries already read, to be written to
	to             io.Writer // nil if there is no such text
	left           int64     // bytes that may still be written, -1 for no limit
	last           time.Time // of the newest entry seen
	ended          bool
	tailEnd        int64 // where the file ended when lines were counted from there
}

func (r *reader) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

func (r *reader) run(ctx context.Context) error {
	if err := r.open(); err != nil && (!r.o.Follow || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	if r.file != nil {
		if err := r.seekTail(); err != nil {
			return err
		}
		if !r.o.Follow {
			return r.upToNow()
		}
	}
	for ctx.Err() == nil {
		if err := r.drain(r.file); err != nil {
			return err
		}
		switched, err := r.rotate()
		if err != nil {
			return err
		}
		if switched {
			continue
		}
		if r.ended {
			return nil
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
	return nil // nobody reads any more
}

// wait returns when there may be more to read, when no more will come, or when nobody reads any more.
func (r *reader) wait(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.o.Ended:
			r.ended = true
			return nil
		case err := <-r.watcher.Errors:
			return fmt.Errorf("watch log: %w", err)
		case ev, ok := <-r.watcher.Events:
			if !ok {
				return errors.New("watch log: the watch ended")
			}
			if (ev.Name == r.path || ev.Name == r.target) && ev.Op&(fsnotify.Write|fsnotify.Create|fsnotify.Rename) != 0 {
				return nil
			}
		}
	}
}

// open opens the log. In the middle of a rotation, when there is no file of that name, it opens the
// newest rotated file: that one has everything there is.
func (r *reader) open() error {
	f, err := r.openCurrent()
	if !errors.Is(err, fs.ErrNotExist) {
		r.file = f
		return err
	}
	older, globErr := rotatedSince(r.path, nil)
	if globErr != nil {
		return errors.Join(err, globErr)
	}
	older = slices.DeleteFunc(older, func(f string) bool {
		return strings.HasSuffix(f, ".gz") || strings.HasSuffix(f, ".tmp")
	})
	if len(older) == 0 {
		return err
	}
	if f, err = open(older[len(older)-1]); errors.Is(err, fs.ErrNotExist) { // it has its name back
		f, err = open(r.path)
	}
	r.file = f
	return err
}

// openCurrent opens the file of the log's name; if it is elsewhere, it is watched there, too.
func (r *reader) openCurrent() (*os.File, error) {
	target := dockerLog(r.path, r.o.ID)
	if target != "" && target != r.target && r.watcher != nil {
		if err := r.watcher.Add(filepath.Dir(target)); err != nil {
			return nil, fmt.Errorf("watch log: %w", err)
		}
		r.target = target
	}
	return openOf(r.path, r.o.ID)
}

// rotate switches to a new file of the same name, once there is one. The old one has been read to
// its end before.
func (r *reader) rotate() (bool, error) {
	next, err := r.openCurrent()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	switched, err := r.goOver(next)
	if !switched {
		_ = next.Close()
		return false, err
	}
	r.file, r.rest = next, nil
	return true, nil
}

// goOver reads what remains before the next file, and reports whether that is a different file.
func (r *reader) goOver(next *os.File) (bool, error) {
	if r.file == nil {
		return true, nil
	}
	now, err := next.Stat()
	if err != nil {
		return false, err
	}
	old, err := r.file.Stat()
	if err != nil || os.SameFile(old, now) {
		return false, err
	}
	// Text may have been written between the drain and the rename.
	if err := r.drain(r.file); err != nil {
		return false, err
	}
	missed, err := rotatedSince(r.path, old)
	if err != nil {
		return false, err
	}
	_ = r.file.Close()
	r.file = nil
	for _, name := range missed {
		if info, err := os.Stat(name); err == nil && os.SameFile(info, now) {
			break // the next one is no longer the newest
		}
		if err := r.readRotated(name); err != nil {
			return false, err
		}
	}
	return true, nil
}

// rotatedSince lists, oldest first, the files between the one that we read and the current one, for
// a reader so slow that its log was rotated twice. If ours is nil, or no longer there under its own
// name (compressed, removed), it lists all of them.
func rotatedSince(path string, ours fs.FileInfo) ([]string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, byAge)
	for i, name := range all {
		if info, err := os.Stat(name); err == nil && ours != nil && os.SameFile(info, ours) {
			return all[i+1:], nil
		}
	}
	return all, nil
}

// readRotated writes the entries of a rotated file that are newer than what was read.
func (r *reader) readRotated(name string) error {
	f, err := open(name)
	if errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(name, ".tmp") {
		return nil // compressed or removed meanwhile; half compressed
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var in io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			return fmt.Errorf("rotated log: %w", err)
		}
	}
	after, lines := r.last, bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return r.flush()
		}
		if err != nil {
			return errors.Join(r.flush(), fmt.Errorf("rotated log: %w", err))
		}
		if e, ok := parse(line); !ok || !e.time.After(after) {
			continue
		}
		if err := r.writeLine(line); err != nil {
			return err
		}
	}
}

// upToNow writes what the file contains now: the end of a flood may never be reached.
func (r *reader) upToNow() error {
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	at, err := r.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	end := info.Size()
	if r.tailEnd > 0 { // the lines were counted from there
		end = r.tailEnd
	}
	return r.drain(io.LimitReader(r.file, end-at))
}

// drain writes all complete lines up to the end.
func (r *reader) drain(in io.Reader) error {
	if r.file == nil {
		return nil
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		r.rest = append(r.rest, buf[:n]...)
		if werr := r.writeLines(); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) || n == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *reader) writeLines() error {
	data := r.rest
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			break
		}
		if err := r.writeLine(data[:i+1]); err != nil {
			return err
		}
		data = data[i+1:]
	}
	if len(data) > maxEntry {
		data = nil // no runtime writes such an entry; its end is not an entry either
	}
	r.rest = append(r.rest[:0], data...)
	return r.flush()
}

// flush writes the text of the entries that were read.
func (r *reader) flush() error {
	if len(r.text) == 0 {
		return nil
	}
	_, err := r.to.Write(r.text)
	r.text = r.text[:0]
	return err
}

// put adds an entry's text to what is written together. Each write is a packet to the client: one
// per line would be too slow for a flood, whose files are removed when they are old.
func (r *reader) put(w io.Writer, text []byte) error {
	if r.to != w || len(r.text) >= together {
		if err := r.flush(); err != nil {
			return err
		}
		r.to = w
	}
	r.text = append(r.text, text...)
	return nil
}

// writeLine writes one entry, and drops a line that is not one: a log cut off by a crash may
// contain such a line.
func (r *reader) writeLine(line []byte) error {
	e, ok := parse(line)
	if ok {
		r.last = e.time
	}
	if !ok || !r.o.Since.IsZero() && e.time.Before(r.o.Since) {
		return nil
	}
	w := r.stdout
	if e.stream == "stderr" {
		w = r.stderr
	}
	if w == nil {
		return nil
	}
	text := e.text
	if r.o.Timestamps {
		text = append([]byte(e.time.Format(time.RFC3339Nano)+" "), text...)
	}
	if r.left >= 0 && int64(len(text)) > r.left {
		text = text[:r.left]
	}
	if err := r.put(w, text); err != nil {
		return err
	}
	if r.left >= 0 {
		if r.left -= int64(len(text)); r.left == 0 {
			return cmp.Or(r.flush(), errLimit)
		}
	}
	return nil
}

// seekTail seeks to the beginning of the last lines, reading backwards.
func (r *reader) seekTail() error {
	if r.o.Tail == nil || *r.o.Tail < 0 {
		return nil
	}
	end, err := r.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	r.tailEnd = end
	want := *r.o.Tail + 1 // newlines from the end, including the last line's own
	const block = 32 << 10
	for pos := end; pos > 0; {
		size := min(pos, int64(block))
		pos -= size
		buf := make([]byte, size)
		if _, err := r.file.ReadAt(buf, pos); err != nil {
			return err
		}
		for i, b := range slices.Backward(buf) {
			if b != '\n' {
				continue
			}
			if want--; want == 0 {
				_, err := r.file.Seek(pos+int64(i)+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = r.file.Seek(0, io.SeekStart)
	return err
}
