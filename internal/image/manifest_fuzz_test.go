package image

import (
	"context"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzManifest tries what a registry may send as a manifest and as a config.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:00"},"layers":[{"digest":"sha256:01","size":-1}]}`), []byte(`{"rootfs":{"diff_ids":["sha256:02"]}}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:03"},{"platform":{"os":"linux","architecture":"arm64","variant":"v8"}}]}`), []byte(`{}`))
	f.Add([]byte(`{"schemaVersion":1}`), []byte(`{"os":"linux","architecture":"none"}`))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		reads := 0
		read := func(context.Context, ocispec.Descriptor) ([]byte, error) {
			reads++
			return manifest, nil
		}
		m, ok, err := pickManifest(t.Context(), ocispec.Descriptor{Digest: digest.FromBytes(manifest)}, read)
		if reads > maxManifests {
			t.Fatalf("%d documents were read", reads)
		}
		if err != nil || !ok {
			return
		}
		src := source{config: config}
		for _, l := range m.Layers {
			src.layers = append(src.layers, layerSource{size: l.Size})
		}
		r, diffIDs, err := src.parse()
		if err == nil && (len(r.Chain) != len(m.Layers) || len(diffIDs) != len(m.Layers) || r.Size < int64(len(config))) {
			t.Errorf("record %+v", r)
		}
	})
}
