package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wherry.dev/internal/trace"
)

// Export writes images as one archive that is an OCI layout and a `docker save` at
// the same time. The images keep their IDs; layers are not compressed.
func (s *Store) Export(ctx context.Context, w io.Writer, refs ...string) (err error) {
	ctx, span := trace.Start(ctx, "image: export")
	defer func() { _ = trace.End(span, err) }()
	if err := s.flights.begin(); err != nil {
		return err
	}
	defer s.flights.work.Done()
	e := &exporter{ctx: ctx, store: s, tar: tar.NewWriter(w), written: map[digest.Digest]bool{}}
	imgs, release, err := s.forExport(refs)
	if err != nil {
		return err
	}
	defer release()
	for _, img := range imgs {
		if err := e.image(img); err != nil {
			return fmt.Errorf("export %s: %w", img.names[0], err)
		}
	}
	return e.finish()
}

// exported is one image of an archive.
type exported struct {
	imageRecord
	names []string // as given, with references in full
	refs  []string // those that can be tags
}

// forExport finds the images and keeps their layers until release is called.
func (s *Store) forExport(refs []string) (imgs []exported, release func(), err error) {
	s.mu.RLock()
	var chains []string
	for _, ref := range refs {
		id, ok := s.resolveLocked(ref)
		if !ok {
			s.mu.RUnlock()
			return nil, nil, fmt.Errorf("image %s: %w", ref, ErrNotFound)
		}
		i := slices.IndexFunc(imgs, func(e exported) bool { return e.ID == id })
		if i < 0 {
			i = len(imgs)
			imgs = append(imgs, exported{imageRecord: s.images[id]})
			chains = append(chains, s.images[id].Chain...)
		}
		imgs[i].names = append(imgs[i].names, ref)
		if full, err := Normalize(ref); err == nil && s.refs[full] == id {
			imgs[i].refs = append(imgs[i].refs, full)
		}
	}
	s.mu.RUnlock()
	return imgs, s.reserve(chains), nil
}

// exporter writes an archive, each blob once.
type exporter struct {
	ctx     context.Context //nolint:containedctx // that of the one call for which it exists
	store   *Store
	tar     *tar.Writer
	written map[digest.Digest]bool
	index   []ocispec.Descriptor
	docker  []dockerManifest
}

func (e *exporter) image(img exported) error {
	config, err := os.ReadFile(e.store.configPath(img.ID))
	if err != nil {
		return fmt.Errorf("its config is missing; pull or import it again: %w", err)
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	if m.Config, err = e.document(ocispec.MediaTypeImageConfig, config); err != nil {
		return err
	}
	if m.Config.Digest.String() != img.ID {
		return errors.New("its config is corrupt; pull or import it again")
	}
	saved := dockerManifest{Config: blobPath(m.Config.Digest)}
	for _, chainID := range img.Chain {
		d, err := e.layer(chainID)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, d)
		saved.Layers = append(saved.Layers, blobPath(d.Digest))
	}
	doc, err := json.Marshal(m)
	if err != nil {
		return err
	}
	d, err := e.document(ocispec.MediaTypeImageManifest, doc)
	if err != nil {
		return err
	}
	e.name(d, img.refs, &saved)
	e.docker = append(e.docker, saved)
	return nil
}

// name adds the image to the index, once per name.
func (e *exporter) name(d ocispec.Descriptor, refs []string, saved *dockerManifest) {
	before := len(e.index)
	for _, ref := range refs {
		named, err := reference.ParseDockerRef(ref)
		if err != nil {
			continue // cannot happen: Normalize wrote it
		}
		tagged, ok := named.(reference.Tagged)
		if !ok {
			continue // by digest; the manifest in this archive has a different one
		}
		saved.RepoTags = append(saved.RepoTags, reference.FamiliarString(named))
		d.Annotations = map[string]string{annotationContainerdName: ref, ocispec.AnnotationRefName: tagged.Tag()}
		e.index = append(e.index, d)
	}
	if len(e.index) == before {
		d.Annotations = nil
		e.index = append(e.index, d)
	}
}

// layer writes the tar from which a layer was unpacked.
func (e *exporter) layer(chainID string) (ocispec.Descriptor, error) {
	if err := e.ctx.Err(); err != nil {
		return ocispec.Descriptor{}, err
	}
	meta := e.store.layerMeta(chainID)
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.Digest(meta.DiffID), Size: meta.TarSize}
	if meta.TarSize == 0 {
		return d, fmt.Errorf("layer %s: its record is missing; remove the image, then pull or import it again", chainID)
	}
	if !e.first(d.Digest) {
		return d, nil
	}
	if err := e.header(blobPath(d.Digest), d.Size); err != nil {
		return d, err
	}
	check := d.Digest.Verifier()
	dir := e.store.layerDir(chainID)
	err := writeTar(io.MultiWriter(e.tar, check), filepath.Join(dir, tarRecord), filepath.Join(dir, "fs"))
	if err != nil {
		return d, fmt.Errorf("layer %s: %w", d.Digest, err)
	}
	if !check.Verified() {
		return d, fmt.Errorf("layer %s was changed on disk; remove the image, then pull or import it again", d.Digest)
	}
	return d, nil
}

// document writes a small blob.
func (e *exporter) document(mediaType string, doc []byte) (ocispec.Descriptor, error) {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(doc), Size: int64(len(doc))}
	if !e.first(d.Digest) {
		return d, nil
	}
	return d, e.file(blobPath(d.Digest), doc)
}

func (e *exporter) first(d digest.Digest) bool {
	if e.written[d] {
		return false
	}
	e.written[d] = true
	return true
}

func (e *exporter) header(name string, size int64) error {
	return e.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644})
}

func (e *exporter) file(name string, doc []byte) error {
	if err := e.header(name, int64(len(doc))); err != nil {
		return err
	}
	_, err := e.tar.Write(doc)
	return err
}

// finish writes the files that point to the images.
func (e *exporter) finish() error {
	for _, f := range []struct {
		name string
		doc  any
	}{
		{ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}},
		{ocispec.ImageIndexFile, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: e.index}},
		{"manifest.json", e.docker},
	} {
		doc, err := json.Marshal(f.doc)
		if err != nil {
			return err
		}
		if err := e.file(f.name, doc); err != nil {
			return err
		}
	}
	return e.tar.Close()
}
