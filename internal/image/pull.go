package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"wherry.dev/internal/trace"
)

// parallelLayers is how many layers of one image are downloaded side by side.
const parallelLayers = 4

// Progress is how far a pull is: bytes as they are transported.
type Progress struct {
	Done, Total int64
}

// PullOptions are the particulars of a pull; the zero value pulls anonymously.
type PullOptions struct {
	Auth     authn.AuthConfig
	Progress func(Progress) // called from several goroutines
}

// Pull fetches the image for this machine's platform and unpacks it. Pulls of the
// same reference with the same credentials at the same time are one.
func (s *Store) Pull(ctx context.Context, ref string, o PullOptions) (Image, error) {
	full, err := Normalize(ref)
	if err != nil {
		return Image{}, err
	}
	credentials := sha256.Sum256(fmt.Appendf(nil, "%q", []string{o.Auth.Username, o.Auth.Password, o.Auth.Auth, o.Auth.IdentityToken, o.Auth.RegistryToken}))
	key := full + "\x00" + string(credentials[:])
	img, err := s.flights.do(ctx, key, o.Progress, func(ctx context.Context, progress func(Progress)) (Image, error) {
		return s.pull(ctx, full, o.Auth, progress)
	})
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", full, err)
	}
	return img, nil
}

func (s *Store) pull(ctx context.Context, ref string, auth authn.AuthConfig, progress func(Progress)) (img Image, err error) {
	ctx, span := trace.Start(ctx, "image: pull "+ref)
	defer func() { _ = trace.End(span, err) }()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return Image{}, err
	}
	opts := []remote.Option{
		remote.WithContext(ctx),
		remote.WithAuth(authn.FromConfig(auth)),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
	}
	desc, err := remote.Get(parsed, opts...)
	if err != nil {
		return Image{}, err
	}
	source, err := desc.Image()
	if err != nil {
		return Image{}, fmt.Errorf("no image for linux/%s: %w", runtime.GOARCH, err)
	}
	digestRef, err := digestReference(ref, desc.Digest.String())
	if err != nil {
		return Image{}, err
	}
	r, err := s.add(ctx, source, s.spool, progress)
	if err != nil {
		return Image{}, err
	}
	return s.commitReserved(r, []string{ref, digestRef})
}

// fetcher opens the bytes of a layer as they are transported.
type fetcher func(ctx context.Context, l v1.Layer, count func(n int)) (io.ReadCloser, error)

// pending is an image whose layers are all there and reserved.
type pending struct {
	imageRecord
	release func()
}

func (s *Store) commitReserved(p pending, refs []string) (Image, error) {
	defer p.release()
	return s.commit(p.imageRecord, refs)
}

// add unpacks what is missing of the image and returns its record, its layers
// reserved until the caller releases them.
func (s *Store) add(ctx context.Context, source v1.Image, fetch fetcher, progress func(Progress)) (p pending, err error) {
	manifest, err := source.Manifest()
	if err != nil {
		return p, err
	}
	raw, err := source.RawConfigFile()
	if err != nil {
		return p, err
	}
	if err := checkConfig(raw, manifest.Config.Digest); err != nil {
		return p, err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return p, err
	}
	layers, err := source.Layers()
	if err != nil {
		return p, err
	}
	diffIDs := make([]string, 0, len(layers))
	for _, d := range cfg.RootFS.DiffIDs {
		diffIDs = append(diffIDs, d.String())
	}
	if len(layers) != len(diffIDs) {
		return p, fmt.Errorf("the manifest has %d layers, the config %d", len(layers), len(diffIDs))
	}
	p.imageRecord = newRecord(manifest, cfg, diffIDs, int64(len(raw)))
	p.release = s.reserve(p.Chain)
	if err := s.addLayers(ctx, p.Chain, diffIDs, layers, fetch, progress); err != nil {
		p.release()
		return p, err
	}
	return p, nil
}

func newRecord(m *v1.Manifest, cfg ocispec.Image, diffIDs []string, configSize int64) imageRecord {
	r := imageRecord{
		ID: m.Config.Digest.String(), Config: cfg.Config, Size: configSize, Chain: chainIDs(diffIDs),
		Platform: cfg.OS + "/" + cfg.Architecture,
	}
	if cfg.Created != nil {
		r.Created = *cfg.Created
	}
	for _, l := range m.Layers {
		r.Size += l.Size
	}
	return r
}

func checkConfig(raw []byte, want v1.Hash) error {
	sum := sha256.Sum256(raw)
	if got := hex.EncodeToString(sum[:]); got != want.Hex {
		return fmt.Errorf("image config is corrupt: it is sha256:%s, the manifest says %s", got, want)
	}
	return nil
}

// addLayers downloads side by side and unpacks in order, because a layer inherits
// the attributes of folders that only its parents describe.
func (s *Store) addLayers(ctx context.Context, chain, diffIDs []string, layers []v1.Layer, fetch fetcher, progress func(Progress)) error {
	blobs := make([]chan io.ReadCloser, len(layers))
	g, ctx := errgroup.WithContext(ctx)
	meter := newMeter(layers, chain, s.hasLayer, progress)
	downloads, dctx := errgroup.WithContext(ctx)
	downloads.SetLimit(parallelLayers)
	for i := range layers {
		blobs[i] = make(chan io.ReadCloser, 1)
	}
	g.Go(func() error {
		for i, l := range layers {
			if s.hasLayer(chain[i]) {
				continue
			}
			downloads.Go(func() error {
				blob, err := fetch(dctx, l, meter.add)
				if err != nil {
					return err
				}
				blobs[i] <- blob
				return nil
			})
		}
		return downloads.Wait()
	})
	g.Go(func() error { return s.unpackInOrder(ctx, chain, diffIDs, blobs) })
	err := g.Wait()
	for _, b := range blobs {
		select {
		case blob := <-b:
			err = errors.Join(err, blob.Close())
		default:
		}
	}
	return err
}

func (s *Store) unpackInOrder(ctx context.Context, chain, diffIDs []string, blobs []chan io.ReadCloser) error {
	var parents []string
	for i, c := range chain {
		if !s.hasLayer(c) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case blob := <-blobs[i]:
				err := s.unpack(ctx, c, diffIDs[i], parents, blob)
				if err := errors.Join(err, blob.Close()); err != nil {
					return fmt.Errorf("unpack layer %s: %w", diffIDs[i], err)
				}
			}
		}
		parents = slices.Insert(parents, 0, filepath.Join(s.layerDir(c), "fs"))
	}
	return nil
}

// spool downloads a layer into ingest; go-containerregistry checks its digest.
func (s *Store) spool(_ context.Context, l v1.Layer, count func(int)) (io.ReadCloser, error) {
	in, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	f, err := os.CreateTemp(filepath.Join(s.dir, "ingest"), "blob-")
	if err != nil {
		return nil, err
	}
	// without a name it goes away by itself, whatever happens to us
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := io.Copy(f, &countingReader{in, count}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
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

// meter adds up the bytes of all layers of a pull.
type meter struct {
	done, total atomic.Int64
	report      func(Progress)
}

func newMeter(layers []v1.Layer, chain []string, have func(string) bool, report func(Progress)) *meter {
	m := &meter{report: report}
	for i, l := range layers {
		size, err := l.Size()
		if err != nil {
			continue // progress only: the download itself will report what is wrong
		}
		m.total.Add(size)
		if have(chain[i]) {
			m.done.Add(size)
		}
	}
	return m
}

func (m *meter) add(n int) {
	done := m.done.Add(int64(n))
	if m.report != nil {
		m.report(Progress{Done: done, Total: m.total.Load()})
	}
}
