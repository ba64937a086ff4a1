package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wherry.dev/internal/safepath"
	"wherry.dev/internal/trace"
)

// annotationContainerdName is the annotation with the full name of an image in the index of an
// OCI archive; the standard annotation may have only a tag.
const annotationContainerdName = "io.containerd.image.name"

// maxJSON bounds how much of an index, manifest or config is read into memory (the OCI
// distribution-spec tells registries to accept manifests of 4 MiB).
const maxJSON = 8 << 20

// Import adds the images of an archive: an OCI layout or `docker save`, plain or compressed. It
// adds every image for this platform, under the names in the archive.
func (s *Store) Import(ctx context.Context, file string) (imgs []Image, err error) {
	ctx, span := trace.Start(ctx, "image: import "+filepath.Base(file))
	defer func() { _ = trace.End(span, err) }()
	if err := s.flights.begin(); err != nil {
		return nil, err
	}
	defer s.flights.work.Done()
	a, err := s.openArchive(file)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	defer func() { _ = a.f.Close() }()
	named, err := a.images(ctx)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	for _, n := range named {
		img, err := s.add(ctx, n.source, n.refs, nil)
		if err != nil {
			return imgs, fmt.Errorf("import %s: %w", file, err)
		}
		imgs = append(imgs, img)
	}
	return imgs, nil
}

// namedImage is an image of an archive with the references it will get.
type namedImage struct {
	source
	refs []string
}

// tarArchive is an uncompressed tar whose entries are read in place.
type tarArchive struct {
	f       *os.File
	entries map[string]*io.SectionReader
	links   map[string]string // to other entries
}

// openArchive indexes the tar. It first expands a compressed one into ingest.
func (s *Store) openArchive(file string) (*tarArchive, error) {
	f, err := safepath.Regular(file)
	if err != nil {
		return nil, err
	}
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil {
		return nil, errors.Join(fmt.Errorf("not an image archive: %w", err), f.Close())
	}
	if bytes.Equal(magic[:], []byte{0x1f, 0x8b}) || bytes.Equal(magic[:], []byte{0x28, 0xb5}) {
		plain, err := s.expand(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		f = plain
	}
	a := &tarArchive{f: f, entries: map[string]*io.SectionReader{}, links: map[string]string{}}
	if err := a.index(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

func (s *Store) expand(f *os.File) (*os.File, error) {
	in, closeIn, err := decompress(f)
	if err != nil {
		return nil, err
	}
	defer closeIn()
	out, err := s.ingestFile("archive-")
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(out, in); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

func (a *tarArchive) index() error {
	tr := tar.NewReader(a.f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not an image archive: %w", err)
		}
		// tar.Reader has read just the header, so the data starts here
		at, err := a.f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			a.entries[name] = io.NewSectionReader(a.f, at, h.Size)
		case tar.TypeSymlink: // old versions of `docker save` link layers that occur twice
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		}
	}
}

func (a *tarArchive) entry(name string) (*io.SectionReader, error) {
	name = path.Clean(name)
	if to, ok := a.links[name]; ok {
		name = to
	}
	e, ok := a.entries[name]
	if !ok {
		return nil, fmt.Errorf("%s is missing", name)
	}
	return e, nil
}

func (a *tarArchive) read(name string) ([]byte, error) {
	e, err := a.entry(name)
	if err != nil {
		return nil, err
	}
	if e.Size() > maxJSON {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, e.Size(), maxJSON)
	}
	raw := make([]byte, e.Size())
	if _, err := e.ReadAt(raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return raw, nil
}

func (a *tarArchive) readJSON(name string, v any) error {
	raw, err := a.read(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readBlob implements reader.
func (a *tarArchive) readBlob(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	doc, err := a.read(blobPath(d.Digest))
	if err != nil {
		return nil, err
	}
	return doc, verify(d, doc)
}

// layer returns the source of a layer from an entry, which needs no download.
func (a *tarArchive) layer(name string) (layerSource, error) {
	e, err := a.entry(name)
	if err != nil {
		return layerSource{}, fmt.Errorf("layer: %w", err)
	}
	return layerSource{name: path.Base(name), size: e.Size(), open: func(_ context.Context, count func(int), done func()) (io.ReadCloser, error) {
		done()
		count(int(e.Size()))
		return io.NopCloser(io.NewSectionReader(e, 0, e.Size())), nil
	}}, nil
}

// images finds the images to import. `docker save` writes both forms nowadays; the OCI form is
// tried first.
func (a *tarArchive) images(ctx context.Context) ([]namedImage, error) {
	if _, err := a.entry(ocispec.ImageIndexFile); err == nil {
		return a.ociImages(ctx)
	}
	if _, err := a.entry("manifest.json"); err == nil {
		return a.dockerImages()
	}
	return nil, errors.New("it has neither index.json (OCI) nor manifest.json (docker save)")
}

func (a *tarArchive) ociImages(ctx context.Context) ([]namedImage, error) {
	var index ocispec.Index
	if err := a.readJSON(ocispec.ImageIndexFile, &index); err != nil {
		return nil, err
	}
	var out []namedImage
	byDigest := map[digest.Digest]int{}
	for _, d := range byPlatform(index.Manifests) {
		refs, err := ociNames(d)
		if err != nil {
			return nil, err
		}
		if i, ok := byDigest[d.Digest]; ok {
			out[i].refs = append(out[i].refs, refs...)
			continue
		}
		m, ok, err := pickManifest(ctx, d, a.readBlob)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		src, err := a.source(ctx, m)
		if err != nil {
			return nil, err
		}
		byDigest[d.Digest] = len(out)
		out = append(out, namedImage{src, refs})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it has no image for %s", platforms.Format(platforms.DefaultSpec()))
	}
	return out, nil
}

func (a *tarArchive) source(ctx context.Context, m ocispec.Manifest) (source, error) {
	src, err := newSource(ctx, m, a.readBlob)
	if err != nil {
		return src, err
	}
	for _, d := range m.Layers {
		if err := d.Digest.Validate(); err != nil {
			return src, fmt.Errorf("layer %q: %w", d.Digest, err)
		}
		l, err := a.layer(blobPath(d.Digest))
		if err != nil {
			return src, err
		}
		src.layers = append(src.layers, l)
	}
	return src, nil
}

func ociNames(d ocispec.Descriptor) ([]string, error) {
	ref := d.Annotations[annotationContainerdName]
	if ref == "" {
		ref = d.Annotations[ocispec.AnnotationRefName]
	}
	if ref == "" {
		return nil, nil
	}
	full, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	byDigest, err := digestReference(full, d.Digest.String())
	if err != nil {
		return nil, err
	}
	return []string{full, byDigest}, nil
}

// dockerManifest is one image of `docker save`'s manifest.json.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (a *tarArchive) dockerImages() ([]namedImage, error) {
	var manifest []dockerManifest
	if err := a.readJSON("manifest.json", &manifest); err != nil {
		return nil, err
	}
	var out []namedImage
	for _, m := range manifest {
		n := namedImage{}
		for _, t := range m.RepoTags {
			full, err := Normalize(t)
			if err != nil {
				return nil, err
			}
			n.refs = append(n.refs, full)
		}
		var err error
		if n.config, err = a.read(m.Config); err != nil {
			return nil, err
		}
		for _, name := range m.Layers {
			l, err := a.layer(name)
			if err != nil {
				return nil, err
			}
			n.layers = append(n.layers, l)
		}
		out = append(out, n)
	}
	return out, nil
}

func blobPath(d digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}
