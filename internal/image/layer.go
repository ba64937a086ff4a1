package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// layerMeta is what layers/<id>/meta.json holds.
type layerMeta struct {
	ChainID string `json:"chainID"`
	DiffID  string `json:"diffID"`
	TarSize int64  `json:"tarSize"` // of the layer as a tar; 0 if no longer known
	Bytes   int64  `json:"bytes"`   // on disk
	Inodes  int64  `json:"inodes"`
}

// layerDir returns a short path, because overlayfs takes all lowerdirs in one page of options.
func (s *Store) layerDir(chainID string) string {
	return filepath.Join(s.dir, "layers", layerName(chainID))
}

func layerName(chainID string) string { return chainID[len("sha256:") : len("sha256:")+24] }

// chainIDs turns diff IDs into chain IDs (OCI image-spec, "Layer ChainID").
func chainIDs(diffIDs []digest.Digest) []string {
	chain := make([]string, len(diffIDs))
	for i, d := range diffIDs {
		if i == 0 {
			chain[i] = d.String()
			continue
		}
		chain[i] = digest.FromString(chain[i-1] + " " + d.String()).String()
	}
	return chain
}

// reserve protects the layers of an image that is being assembled from the sweep.
func (s *Store) reserve(chain []string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chain {
		s.reserved[c]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range chain {
			if s.reserved[c]--; s.reserved[c] == 0 {
				delete(s.reserved, c)
			}
		}
	}
}

// sweepLayers removes the layers that no image has and that no pull is about to use.
func (s *Store) sweepLayers() error {
	s.mu.Lock()
	gone, err := s.dropLayersLocked()
	s.mu.Unlock()
	return errors.Join(err, removeAll(gone))
}

// dropLayersLocked moves those layers out of the way, so that a crash leaves no half layer. The
// caller deletes the folders without holding the lock.
func (s *Store) dropLayersLocked() (gone []string, err error) {
	used := map[string]bool{}
	for _, r := range s.images {
		for _, c := range r.Chain {
			used[c] = true
		}
	}
	for c := range s.layers {
		if used[c] || s.reserved[c] > 0 {
			continue
		}
		s.removals++
		away := filepath.Join(s.dir, "ingest", fmt.Sprintf("gone-%d", s.removals))
		if err := os.Rename(s.layerDir(c), away); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return gone, err
		}
		gone = append(gone, away)
		delete(s.layers, c)
		failpoint.At("remove-layer")
	}
	return gone, nil
}

func removeAll(dirs []string) error {
	var errs []error
	for _, d := range dirs {
		errs = append(errs, safepath.RemoveAll(d))
	}
	return errors.Join(errs...)
}

func (s *Store) hasLayer(chainID string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.layers[chainID]
	return ok
}

// unpack applies one layer (a tar, plain or compressed) on top of its parents,
// given topmost first, and closes the blob. Its uncompressed bytes must hash to the
// diff ID.
func (s *Store) unpack(ctx context.Context, chainID string, diffID digest.Digest, parents []string, blob io.ReadCloser) error {
	tmp, err := os.MkdirTemp(filepath.Join(s.dir, "ingest"), "unpack-")
	if err != nil {
		return errors.Join(err, blob.Close())
	}
	defer func() { _ = safepath.RemoveAll(tmp) }() // Open sweeps what stays
	m := layerMeta{ChainID: chainID, DiffID: diffID.String()}
	if m.TarSize, err = s.applyTar(ctx, tmp, diffID, parents, blob); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	failpoint.At("pull-applied")
	if m.Bytes, m.Inodes, err = diskUsage(filepath.Join(tmp, "fs")); err != nil {
		return err
	}
	if err := record.WriteNew(filepath.Join(tmp, "meta.json"), recordVersion, m); err != nil {
		return err
	}
	failpoint.At("pull-unpacked")
	return s.adoptLayer(tmp, m)
}

// adoptLayer renames an unpacked layer into place. The layer becomes durable with its image: see
// commit.
func (s *Store) adoptLayer(tmp string, m layerMeta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.layers[m.ChainID]; ok {
		return nil
	}
	if err := os.Rename(tmp, s.layerDir(m.ChainID)); err != nil {
		return err
	}
	s.layers[m.ChainID] = m
	failpoint.At("pull-adopted")
	return nil
}

// applyTar unpacks the blob into tmp/fs, and keeps next to it what is needed to write the same
// tar again. It returns the length of the tar.
func (s *Store) applyTar(ctx context.Context, tmp string, diffID digest.Digest, parents []string, blob io.ReadCloser) (size int64, err error) {
	open := true
	closeBlob := func() error {
		if !open {
			return nil
		}
		open = false
		return blob.Close()
	}
	defer func() { err = errors.Join(err, closeBlob()) }()
	dir := filepath.Join(tmp, "fs")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return 0, err
	}
	plain, closePlain, err := decompress(blob)
	if err != nil {
		return 0, err
	}
	defer closePlain()
	hash := sha256.New()
	tarball := &tarCounter{r: io.TeeReader(&roomReader{r: plain, check: s.checkRoom}, hash)}
	rec, err := recordTar(filepath.Join(tmp, tarRecord), tarball)
	if err != nil {
		return 0, err
	}
	_, err = archive.Apply(ctx, dir, rec.stream, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout), archive.WithParents(parents))
	if err == nil {
		// the digest includes the padding after the last entry
		_, err = io.Copy(io.Discard, rec.stream)
	}
	if err != nil {
		err = verdict(blob, err)
		// the recorder may be waiting for bytes that will not come
		err = errors.Join(err, closeBlob())
	}
	if rerr := rec.close(); err == nil {
		err = rerr
	}
	if err != nil {
		return 0, err
	}
	if got := digest.NewDigest(digest.SHA256, hash); got != diffID {
		return 0, fmt.Errorf("content is corrupt: its digest is %s, the image's config says %s", got, diffID)
	}
	return tarball.n, nil
}

// verdict returns why a layer could not be unpacked. If the data does not match the digest, that
// says more than the error of gunzip or tar.
func verdict(blob io.Reader, err error) error {
	dl, ok := blob.(*download)
	if _, ours := errors.AsType[unix.Errno](err); !ok || ours {
		return err
	}
	if derr := dl.wait(); derr != nil {
		return derr
	}
	return err
}

type tarCounter struct {
	r io.Reader
	n int64
}

func (c *tarCounter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// diskUsage returns what a folder takes: the blocks and the number of its files, each file
// counted once however many names it has.
func diskUsage(dir string) (size, inodes int64, err error) {
	seen := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		size += st.Blocks * 512
		inodes++
		return nil
	})
	return size, inodes, err
}

// syncFS makes everything written to the file system of dir durable.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return unix.Syncfs(int(d.Fd()))
}
