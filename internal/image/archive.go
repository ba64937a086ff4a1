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
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"wherry.dev/internal/trace"
)

// Annotations that name an image in the index of an OCI archive.
const (
	annotationContainerdName = "io.containerd.image.name"
	annotationRefName        = "org.opencontainers.image.ref.name"
)

// maxJSON bounds what is read into memory of an index, manifest or config (the
// OCI distribution-spec tells registries to accept manifests of 4 MiB).
const maxJSON = 8 << 20

// Import adds the images of an archive: an OCI layout or `docker save`, plain or
// compressed. All images for this platform are added under the names in it.
func (s *Store) Import(ctx context.Context, file string) (imgs []Image, err error) {
	ctx, span := trace.Start(ctx, "image: import "+filepath.Base(file))
	defer func() { _ = trace.End(span, err) }()
	a, err := s.openArchive(file)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	defer func() { _ = a.f.Close() }()
	named, err := a.images()
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	for _, n := range named {
		p, err := s.add(ctx, n.img, directly, nil)
		if err != nil {
			return imgs, fmt.Errorf("import %s: %w", file, err)
		}
		img, err := s.commitReserved(p, n.refs)
		if err != nil {
			return imgs, fmt.Errorf("import %s: %w", file, err)
		}
		imgs = append(imgs, img)
	}
	return imgs, nil
}

// directly reads a layer from the archive, where it already is on disk.
func directly(_ context.Context, l v1.Layer, _ func(int)) (io.ReadCloser, error) {
	return l.Compressed()
}

// namedImage is an image of an archive with the references it is to get.
type namedImage struct {
	img  v1.Image
	refs []string
}

// tarArchive is an uncompressed tar whose entries are read in place.
type tarArchive struct {
	f       *os.File
	entries map[string]*io.SectionReader
}

// openArchive indexes the tar; a compressed one is first expanded into ingest.
func (s *Store) openArchive(file string) (*tarArchive, error) {
	f, err := os.Open(file)
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
	a := &tarArchive{f: f, entries: map[string]*io.SectionReader{}}
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
	out, err := os.CreateTemp(filepath.Join(s.dir, "ingest"), "archive-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(out.Name()); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if _, err := io.Copy(out, in); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	_, err = out.Seek(0, io.SeekStart)
	return out, err
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
		// tar.Reader reads no further than the header, so this is where the data starts
		at, err := a.f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			a.entries[path.Clean(h.Name)] = io.NewSectionReader(a.f, at, h.Size)
		}
	}
}

func (a *tarArchive) readJSON(entry string, v any) ([]byte, error) {
	e, ok := a.entries[entry]
	if !ok {
		return nil, fmt.Errorf("%s is missing", entry)
	}
	if e.Size() > maxJSON {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", entry, e.Size(), maxJSON)
	}
	raw := make([]byte, e.Size())
	if _, err := e.ReadAt(raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", entry, err)
	}
	if v == nil {
		return raw, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("%s: %w", entry, err)
	}
	return raw, nil
}

// images finds what to import. `docker save` writes both forms nowadays; the OCI
// one is taken first.
func (a *tarArchive) images() ([]namedImage, error) {
	if _, ok := a.entries["index.json"]; ok {
		return a.ociImages()
	}
	if _, ok := a.entries["manifest.json"]; ok {
		return a.dockerImages()
	}
	return nil, errors.New("neither index.json (OCI) nor manifest.json (docker save) is in it")
}

func (a *tarArchive) ociImages() ([]namedImage, error) {
	var index v1.IndexManifest
	if _, err := a.readJSON("index.json", &index); err != nil {
		return nil, err
	}
	var out []namedImage
	byDigest := map[v1.Hash]int{}
	for _, d := range index.Manifests {
		img, digest, err := a.pick(d)
		if err != nil {
			return nil, err
		}
		refs, err := ociNames(d)
		if err != nil {
			return nil, err
		}
		if i, ok := byDigest[digest]; ok {
			out[i].refs = append(out[i].refs, refs...)
			continue
		}
		if img != nil {
			byDigest[digest] = len(out)
			out = append(out, namedImage{img, refs})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no image for linux/%s in it", runtime.GOARCH)
	}
	return out, nil
}

func ociNames(d v1.Descriptor) ([]string, error) {
	ref := d.Annotations[annotationContainerdName]
	if ref == "" {
		ref = d.Annotations[annotationRefName]
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

// pick follows a descriptor to the image for this platform; nil when it has none.
func (a *tarArchive) pick(d v1.Descriptor) (v1.Image, v1.Hash, error) {
	want := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	switch {
	case d.Platform != nil && !d.Platform.Satisfies(want):
		return nil, d.Digest, nil
	case d.MediaType.IsImage():
		img, err := partial.CompressedToImage(&archiveImage{a: a, digest: d.Digest, mediaType: d.MediaType})
		return img, d.Digest, err
	case d.MediaType.IsIndex():
		var index v1.IndexManifest
		if _, err := a.readJSON(blobPath(d.Digest), &index); err != nil {
			return nil, d.Digest, err
		}
		for _, child := range index.Manifests {
			if img, digest, err := a.pick(child); err != nil || img != nil {
				return img, digest, err
			}
		}
	}
	return nil, d.Digest, nil
}

func (a *tarArchive) dockerImages() ([]namedImage, error) {
	var manifest tarball.Manifest
	if _, err := a.readJSON("manifest.json", &manifest); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(a.f, 0, 1<<62)), nil
	}
	var out []namedImage
	for _, m := range manifest {
		if len(m.RepoTags) == 0 && len(manifest) > 1 {
			continue // it has no name by which it could be told from the others
		}
		var tag *name.Tag
		n := namedImage{}
		for i, t := range m.RepoTags {
			full, err := Normalize(t)
			if err != nil {
				return nil, err
			}
			n.refs = append(n.refs, full)
			if i == 0 {
				parsed, err := name.NewTag(t)
				if err != nil {
					return nil, err
				}
				tag = &parsed
			}
		}
		var err error
		if n.img, err = tarball.Image(opener, tag); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func blobPath(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// archiveImage reads one image of an OCI archive (partial.CompressedImageCore).
type archiveImage struct {
	a         *tarArchive
	digest    v1.Hash
	mediaType types.MediaType
}

func (i *archiveImage) MediaType() (types.MediaType, error) { return i.mediaType, nil }

func (i *archiveImage) RawManifest() ([]byte, error) { return i.a.readJSON(blobPath(i.digest), nil) }

func (i *archiveImage) RawConfigFile() ([]byte, error) {
	m, err := partial.Manifest(i)
	if err != nil {
		return nil, err
	}
	return i.a.readJSON(blobPath(m.Config.Digest), nil)
}

func (i *archiveImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	m, err := partial.Manifest(i)
	if err != nil {
		return nil, err
	}
	for _, d := range m.Layers {
		if d.Digest == h {
			return &archiveLayer{i.a, d}, nil
		}
	}
	return nil, fmt.Errorf("layer %s is not in the manifest", h)
}

type archiveLayer struct {
	a    *tarArchive
	desc v1.Descriptor
}

func (l *archiveLayer) Digest() (v1.Hash, error)            { return l.desc.Digest, nil }
func (l *archiveLayer) Size() (int64, error)                { return l.desc.Size, nil }
func (l *archiveLayer) MediaType() (types.MediaType, error) { return l.desc.MediaType, nil }
func (l *archiveLayer) Compressed() (io.ReadCloser, error) {
	e, ok := l.a.entries[blobPath(l.desc.Digest)]
	if !ok {
		return nil, fmt.Errorf("layer %s is missing from the archive", l.desc.Digest)
	}
	return io.NopCloser(io.NewSectionReader(e, 0, e.Size())), nil
}
