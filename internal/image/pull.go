package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/trace"
)

// parallelLayers is how many layers of one image are downloaded in parallel.
const parallelLayers = 4

// Progress is the state of a pull: bytes as transported, and unpacked layers.
type Progress struct {
	Done, Total        int64
	LayersDone, Layers int
}

// PullOptions are the options of a pull; the zero value pulls anonymously.
type PullOptions struct {
	Auth     Auth
	Progress func(Progress) // called by one goroutine at a time, and not after Pull has returned
}

// Pull fetches the image for this machine's platform and unpacks it. Concurrent pulls of the same
// reference with the same credentials share one pull.
func (s *Store) Pull(ctx context.Context, ref string, o PullOptions) (Image, error) {
	full, err := Normalize(ref)
	if err != nil {
		return Image{}, err
	}
	credentials := sha256.Sum256(fmt.Appendf(nil, "%q", o.Auth))
	key := full + "\x00" + string(credentials[:])
	img, err := s.flights.do(ctx, key, full, o.Progress, func(ctx context.Context, progress func(Progress)) (Image, error) {
		return s.pull(ctx, full, o.Auth, progress)
	})
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", full, err)
	}
	return img, nil
}

// pull takes these steps:
//
//  1. resolve the reference to a digest; an image that already exists under the digest
//     only gets the name
//  2. read the manifest for this machine
//  3. download and unpack the missing layers
//  4. make everything durable, then write the image's record and its names
func (s *Store) pull(ctx context.Context, ref string, auth Auth, progress func(Progress)) (img Image, err error) {
	ctx, span := trace.Start(ctx, "image: pull "+ref)
	defer func() { _ = trace.End(span, err) }()
	ctx = quiet(ctx)
	r, err := s.openRegistry(ctx, ref, auth)
	if err != nil {
		return Image{}, err
	}
	defer r.close()
	top, err := r.resolve(ctx)
	if err != nil {
		return Image{}, err
	}
	byDigest, err := digestReference(ref, top.Digest.String())
	if err != nil {
		return Image{}, err
	}
	if img, ok, err := s.tag(ref, byDigest); ok || err != nil {
		return img, err
	}
	src, err := s.remoteSource(ctx, r, top)
	if err != nil {
		return Image{}, err
	}
	failpoint.At("pull-resolved")
	return s.add(ctx, src, []string{ref, byDigest}, progress)
}

// remoteSource reads the manifest and the config.
func (s *Store) remoteSource(ctx context.Context, r *registry, top ocispec.Descriptor) (source, error) {
	m, ok, err := pickManifest(ctx, top, r.read)
	if err != nil {
		return source{}, err
	}
	if !ok {
		return source{}, fmt.Errorf("no image for %s in %s", platforms.Format(platforms.DefaultSpec()), top.Digest)
	}
	src, err := newSource(ctx, m, r.read)
	if err != nil {
		return source{}, err
	}
	for _, l := range m.Layers {
		src.layers = append(src.layers, layerSource{
			name: l.Digest.String(), size: l.Size,
			open: func(ctx context.Context, count func(int), done func()) (io.ReadCloser, error) {
				return s.startDownload(ctx, r, l, count, done)
			},
		})
	}
	return src, nil
}

// add unpacks the missing parts of an image and makes it visible under the names. If it fails, it
// leaves nothing that was not there before.
func (s *Store) add(ctx context.Context, src source, refs []string, progress func(Progress)) (img Image, err error) {
	r, diffIDs, err := src.parse()
	if err != nil {
		return Image{}, err
	}
	release := s.reserve(r.Chain)
	defer func() {
		release()
		if err != nil {
			err = errors.Join(err, s.sweepLayers())
		}
	}()
	if err := s.addLayers(ctx, r.Chain, diffIDs, src.layers, progress); err != nil {
		return Image{}, err
	}
	return s.commit(ctx, r, src.config, refs)
}

// addLayers downloads layers in parallel, and unpacks each one as it arrives, in order: a layer
// inherits the attributes of folders that only its parents describe.
func (s *Store) addLayers(ctx context.Context, chain []string, diffIDs []digest.Digest, layers []layerSource, progress func(Progress)) error {
	g, ctx := errgroup.WithContext(ctx)
	m := &meter{report: progress, layers: len(layers)}
	for _, l := range layers {
		m.total.Add(l.size)
	}
	slots := make(chan struct{}, parallelLayers)
	below := make(chan struct{}) // closed when the parents are there
	close(below)
	var parents []string
	for i, l := range layers {
		// take them in order, so that the layer to unpack next comes first
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if err := g.Wait(); err != nil {
				return err
			}
			return context.Cause(ctx)
		}
		job := layerJob{
			layerSource: l, chainID: chain[i], diffID: diffIDs[i], parents: parents, meter: m,
			below: below, there: make(chan struct{}), fetched: func() { <-slots },
		}
		g.Go(func() error { return s.addLayer(ctx, job) })
		below = job.there
		parents = slices.Insert(slices.Clone(parents), 0, filepath.Join(s.layerDir(chain[i]), "fs"))
	}
	return g.Wait()
}

// layerJob is one layer on its way into the store.
type layerJob struct {
	layerSource
	chainID string
	diffID  digest.Digest
	parents []string // topmost first
	meter   *meter

	below   <-chan struct{} // closed when the parents are there
	there   chan struct{}   // closed when this layer is there
	fetched func()          // called once, when nothing more will be downloaded
}

// addLayer makes sure that a layer is in the store. Concurrent callers that need the same layer
// wait; if it fails here, one of them tries next.
func (s *Store) addLayer(ctx context.Context, j layerJob) error {
	unlock, err := s.layerLocks.lock(ctx, j.chainID)
	if err != nil {
		j.fetched()
		return err
	}
	defer unlock()
	if s.hasLayer(j.chainID) {
		j.fetched()
		j.meter.add(int(j.size))
	} else if err := s.fetchLayer(ctx, j); err != nil {
		return fmt.Errorf("layer %s: %w", j.name, err)
	}
	j.meter.unpacked()
	close(j.there)
	return nil
}

func (s *Store) fetchLayer(ctx context.Context, j layerJob) (err error) {
	ctx, span := trace.Start(ctx, "image: layer "+j.name)
	defer func() { _ = trace.End(span, err) }()
	blob, err := j.open(ctx, j.meter.add, j.fetched)
	if err != nil {
		j.fetched()
		return err
	}
	select {
	case <-j.below:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), blob.Close())
	}
	return s.unpack(ctx, j.chainID, j.diffID, j.parents, blob)
}

// meter adds up the bytes of all layers of a pull.
type meter struct {
	done, total atomic.Int64
	layers      int
	layersThere atomic.Int64
	report      func(Progress)
}

func (m *meter) add(n int) {
	m.done.Add(int64(n))
	m.tell()
}

func (m *meter) unpacked() {
	m.layersThere.Add(1)
	m.tell()
}

func (m *meter) tell() {
	if m.report != nil {
		m.report(Progress{Done: m.done.Load(), Total: m.total.Load(), LayersDone: int(m.layersThere.Load()), Layers: m.layers})
	}
}
