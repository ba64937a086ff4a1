package image

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// source is an image somewhere else, about to be added to the store.
type source struct {
	config []byte // the document whose digest is the image's ID
	layers []layerSource
}

// layerSource is one layer of an image, as it is transported.
type layerSource struct {
	name string // for people: its digest
	size int64
	// open starts to read it. It calls done once, when nothing more will be fetched.
	open func(ctx context.Context, count func(int), done func()) (io.ReadCloser, error)
}

// maxLayers is the 500 that overlayfs takes, less the one that containers have below. More would
// be downloaded, each into an open file, and unpacked for nothing.
const maxLayers = 499

// newSource checks a manifest and reads the config that it names.
func newSource(ctx context.Context, m ocispec.Manifest, read reader) (source, error) {
	switch m.Config.MediaType {
	case ocispec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json", "":
	default:
		return source{}, fmt.Errorf("not a container image but an artifact of type %s", m.Config.MediaType)
	}
	config, err := read(ctx, m.Config)
	if err != nil {
		return source{}, fmt.Errorf("image config: %w", err)
	}
	return source{config: config}, nil
}

// parse parses the config and turns it into the image's record.
func (s *source) parse() (r imageRecord, diffIDs []digest.Digest, err error) {
	cfg, err := parseConfig(s.config)
	if err != nil {
		return r, nil, err
	}
	here := platforms.Default()
	if p := (ocispec.Platform{OS: cfg.OS, Architecture: cfg.Architecture, Variant: cfg.Variant}); p.OS != "" && p.Architecture != "" && !here.Match(platforms.Normalize(p)) {
		return r, nil, fmt.Errorf("the image is for %s, but this machine is %s", platforms.Format(p), platforms.Format(platforms.DefaultSpec()))
	}
	if len(s.layers) != len(cfg.RootFS.DiffIDs) {
		return r, nil, fmt.Errorf("the manifest has %d layers, but the config has %d", len(s.layers), len(cfg.RootFS.DiffIDs))
	}
	if len(s.layers) > maxLayers {
		return r, nil, fmt.Errorf("the image has %d layers; more than %d cannot be mounted", len(s.layers), maxLayers)
	}
	for _, d := range cfg.RootFS.DiffIDs {
		if !isSHA256(d.String()) {
			return r, nil, fmt.Errorf("image config: diff ID %q is not a sha256 digest", d)
		}
	}
	r = imageRecord{
		ID: digest.FromBytes(s.config).String(), Config: cfg.Config, Size: int64(len(s.config)),
		Chain: chainIDs(cfg.RootFS.DiffIDs), Platform: cfg.OS + "/" + cfg.Architecture,
	}
	if cfg.Created != nil {
		r.Created = *cfg.Created
	}
	for _, l := range s.layers {
		if l.size < 0 {
			return r, nil, errors.New("a layer has a negative size")
		}
		r.Size += l.size
	}
	return r, cfg.RootFS.DiffIDs, nil
}

// isSHA256 reports whether an untrusted string is a SHA-256 digest; the methods of digest.Digest
// panic on anything that is not a digest.
func isSHA256(s string) bool {
	d := digest.Digest(s)
	return d.Validate() == nil && d.Algorithm() == digest.SHA256
}
