package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// download is a blob on its way from a registry into an unnamed file, which disappears whatever
// happens to us. It can be read while it grows.
//
// Whoever starts a download must call Close, which ends it.
type download struct {
	file   *os.File
	room   func() error
	cancel context.CancelFunc
	done   chan struct{} // closed when err and size are final
	offset int64         // of the reader

	mu   sync.Mutex
	more *sync.Cond
	size int64 // bytes in the file
	over bool
	err  error // io.EOF once the blob is complete and its digest correct
}

// startDownload starts to fetch a blob. It calls done when nothing more will come.
func (s *Store) startDownload(ctx context.Context, r *registry, d ocispec.Descriptor, count func(int), done func()) (*download, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	f, err := s.ingestFile("blob-")
	if err != nil {
		return nil, err
	}
	dl := &download{file: f, room: s.checkRoom, done: make(chan struct{})}
	dl.more = sync.NewCond(&dl.mu)
	ctx, dl.cancel = context.WithCancel(ctx)
	go func() {
		defer close(dl.done)
		defer done()
		dl.finish(dl.fetch(ctx, r, d, count))
	}()
	return dl, nil
}

// ingestFile makes an unnamed file.
func (s *Store) ingestFile(prefix string) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Join(s.dir, "ingest"), prefix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fetch writes the blob to the file, and resumes where a connection broke.
func (dl *download) fetch(ctx context.Context, r *registry, d ocispec.Descriptor, count func(int)) error {
	hash := d.Digest.Verifier()
	sink := io.MultiWriter(dl, hash)
	err := retry(ctx, func() (bool, error) {
		from := dl.size // only this goroutine changes it
		in, err := r.open(ctx, d, from)
		if err != nil {
			return false, err
		}
		_, err = io.CopyBuffer(sink, &countingReader{&roomReader{r: in, check: dl.room}, count}, make([]byte, 256<<10))
		return dl.size > from, errors.Join(err, in.Close())
	})
	switch {
	case err != nil:
		return err
	case dl.size != d.Size:
		return fmt.Errorf("the registry sent %d bytes instead of %d", dl.size, d.Size)
	case !hash.Verified():
		return errors.New("content is corrupt: what the registry sent does not have this digest")
	}
	return nil
}

// Write appends to the file and wakes the reader.
func (dl *download) Write(p []byte) (int, error) {
	n, err := dl.file.WriteAt(p, dl.size)
	dl.mu.Lock()
	dl.size += int64(n)
	dl.mu.Unlock()
	dl.more.Signal()
	return n, err
}

func (dl *download) finish(err error) {
	if err == nil {
		err = io.EOF
	}
	dl.mu.Lock()
	dl.over, dl.err = true, err
	dl.mu.Unlock()
	dl.more.Signal()
}

// Read waits for data that has not arrived yet. It returns io.EOF only after the last byte of a
// blob whose digest is correct.
func (dl *download) Read(p []byte) (int, error) {
	dl.mu.Lock()
	for dl.offset == dl.size && !dl.over {
		dl.more.Wait()
	}
	left, err := dl.size-dl.offset, dl.err
	dl.mu.Unlock()
	if left == 0 {
		return 0, err
	}
	n, err := dl.file.ReadAt(p[:min(int64(len(p)), left)], dl.offset)
	dl.offset += int64(n)
	return n, err
}

// wait waits for the end of the download. It returns nil if the blob is complete.
func (dl *download) wait() error {
	<-dl.done
	if dl.err == io.EOF { //nolint:errorlint // our own marker, never wrapped
		return nil
	}
	return dl.err
}

// Close ends the download and waits until it has ended.
func (dl *download) Close() error {
	dl.cancel()
	<-dl.done
	return dl.file.Close()
}

type countingReader struct {
	r     io.Reader
	count func(int)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.count(n)
	return n, err
}
