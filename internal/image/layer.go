package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/record"
)

// layerMeta is what layers/<id>/meta.json holds.
type layerMeta struct {
	ChainID string `json:"chainID"`
	DiffID  string `json:"diffID"`
	Bytes   int64  `json:"bytes"`
	Inodes  int64  `json:"inodes"`
}

// layerDir is short because overlayfs takes all lowerdirs in one page of options.
func (s *Store) layerDir(chainID string) string {
	return filepath.Join(s.dir, "layers", chainID[len("sha256:"):len("sha256:")+24])
}

// chainIDs turns diff IDs into chain IDs (OCI image-spec, "Layer ChainID").
func chainIDs(diffIDs []string) []string {
	chain := make([]string, len(diffIDs))
	for i, d := range diffIDs {
		if i == 0 {
			chain[i] = d
			continue
		}
		sum := sha256.Sum256([]byte(chain[i-1] + " " + d))
		chain[i] = "sha256:" + hex.EncodeToString(sum[:])
	}
	return chain
}

func (s *Store) loadLayers() error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "layers"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(s.dir, "layers", e.Name())
		var m layerMeta
		if _, err := record.Read(filepath.Join(dir, "meta.json"), &m); err != nil {
			// only a whole layer is renamed to here, so this one was being removed
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			continue
		}
		s.layers[m.ChainID] = m
	}
	return nil
}

// sweepLayers removes the layers that no image has and no pull is about to use.
func (s *Store) sweepLayers() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweepLayersLocked()
}

func (s *Store) sweepLayersLocked() error {
	used := map[string]bool{}
	for _, r := range s.images {
		for _, c := range r.Chain {
			used[c] = true
		}
	}
	var errs []error
	for c := range s.layers {
		if used[c] || s.unpacking[c] > 0 {
			continue
		}
		delete(s.layers, c)
		errs = append(errs, s.deleteLayer(c))
	}
	return errors.Join(errs...)
}

// deleteLayer moves the layer away first, so that a crash leaves no half of one.
func (s *Store) deleteLayer(chainID string) error {
	away := filepath.Join(s.dir, "ingest", "gone-"+filepath.Base(s.layerDir(chainID)))
	if err := os.Rename(s.layerDir(chainID), away); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(away)
}

// reserve keeps the layers of an image that is being put together from the sweep.
func (s *Store) reserve(chain []string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chain {
		s.unpacking[c]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range chain {
			if s.unpacking[c]--; s.unpacking[c] == 0 {
				delete(s.unpacking, c)
			}
		}
	}
}

func (s *Store) hasLayer(chainID string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.layers[chainID]
	return ok
}

// unpack applies one layer (a tar, plain or compressed) on top of its parents,
// given topmost first. Its uncompressed bytes must hash to the diff ID.
func (s *Store) unpack(ctx context.Context, chainID, diffID string, parents []string, blob io.Reader) error {
	tmp, err := os.MkdirTemp(filepath.Join(s.dir, "ingest"), "unpack-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	m := layerMeta{ChainID: chainID, DiffID: diffID}
	if m.Bytes, m.Inodes, err = applyTar(ctx, filepath.Join(tmp, "fs"), diffID, parents, blob); err != nil {
		return err
	}
	if err := syncFS(tmp); err != nil {
		return err
	}
	if err := record.Write(filepath.Join(tmp, "meta.json"), recordVersion, m); err != nil {
		return err
	}
	return s.adoptLayer(tmp, m)
}

// adoptLayer renames an unpacked layer into its place; one that another pull has
// put there meanwhile is just as good.
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
	return record.SyncDir(filepath.Join(s.dir, "layers"))
}

func applyTar(ctx context.Context, dir, diffID string, parents []string, blob io.Reader) (size, inodes int64, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, 0, err
	}
	plain, closePlain, err := decompress(blob)
	if err != nil {
		return 0, 0, err
	}
	defer closePlain()
	digest := sha256.New()
	tee := io.TeeReader(plain, digest)
	count := func(*tar.Header) (bool, error) { inodes++; return true, nil }
	size, err = archive.Apply(ctx, dir, tee,
		archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
		archive.WithParents(parents), archive.WithFilter(count))
	if err != nil {
		return 0, 0, err
	}
	// the padding behind the last entry belongs to the digest too
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return 0, 0, err
	}
	return size, inodes, checkDigest(digest, diffID)
}

func checkDigest(h hash.Hash, want string) error {
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("layer is corrupt: its content is %s, the image's config says %s", got, want)
	}
	return nil
}

// decompress looks at the first bytes, because media types are not to be trusted.
func decompress(r io.Reader) (plain io.Reader, closer func(), err error) {
	br := bufio.NewReaderSize(r, 256<<10)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br)
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	default:
		return br, func() {}, nil
	}
}

// syncFS makes everything written below dir durable before it is renamed: after
// a power cut a layer is there whole or not at all.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return unix.Syncfs(int(d.Fd()))
}
