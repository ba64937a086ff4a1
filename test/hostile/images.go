// Package hostile makes what strangers may send: images made to harm whatever unpacks them, and
// registries that obey no rules. Tests of the image store and of whole nodes share it.
package hostile

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// stream is a layer whose content is never whole in memory, neither where it is made nor in a test.
type stream struct {
	data           []byte
	digest, diffID v1.Hash
	mediaType      types.MediaType
}

// Zeros returns a layer with one file of zeros, which compresses well: a bomb.
func Zeros(t testing.TB, size int64, c compression.Compression) v1.Layer {
	t.Helper()
	return streamed(t, c, func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: size, Mode: 0o644}); err != nil {
			return err
		}
		_, err := io.CopyN(w, zeros{}, size)
		return err
	})
}

// ManyFiles returns a layer of n empty files.
func ManyFiles(t testing.TB, n int) v1.Layer {
	t.Helper()
	return streamed(t, compression.ZStd, func(w *tar.Writer) error {
		for i := range n {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("many/%d", i), Mode: 0o644}); err != nil {
				return err
			}
		}
		return nil
	})
}

func streamed(t testing.TB, c compression.Compression, fill func(*tar.Writer) error) v1.Layer {
	t.Helper()
	var out bytes.Buffer
	var z io.WriteCloser
	l := &stream{mediaType: types.OCILayer}
	var err error
	if c == compression.ZStd {
		l.mediaType = types.OCILayerZStd
		z, err = zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
	} else {
		z, err = gzip.NewWriterLevel(&out, gzip.BestSpeed)
	}
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	w := tar.NewWriter(io.MultiWriter(z, hash))
	if err := errors.Join(fill(w), w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	l.data = out.Bytes()
	l.digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	l.diffID = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(hash.Sum(nil))}
	return l
}

func (l *stream) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *stream) DiffID() (v1.Hash, error)             { return l.diffID, nil }
func (l *stream) Size() (int64, error)                 { return int64(len(l.data)), nil }
func (l *stream) MediaType() (types.MediaType, error)  { return l.mediaType, nil }
func (l *stream) Uncompressed() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
func (l *stream) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.data)), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Image is one that a node must survive.
type Image struct {
	Image interface{ Digest() (v1.Hash, error) }
	// Refused is part of the message with which the pull fails; "" means that the image may be
	// pulled, but must not reach anything outside its container.
	Refused string
}

// Bombs returns layers of a few kilobytes that expand to the given size, or number of files.
func Bombs(t testing.TB, size int64, files int) map[string]Image {
	t.Helper()
	const full = "no space left on device"
	return map[string]Image{
		"bomb-gzip":   {AsOCI(ImageOf(t, Zeros(t, size, compression.GZip))), full},
		"bomb-zstd":   {AsOCI(ImageOf(t, Zeros(t, size, compression.ZStd))), full},
		"bomb-inodes": {AsOCI(ImageOf(t, ManyFiles(t, files))), full},
	}
}

// Images returns small ones. They aim at files in target, a folder of the machine; in images whose
// layers are hostile, base comes below those layers.
func Images(t testing.TB, target string, base ...v1.Layer) map[string]Image {
	t.Helper()
	all := map[string]Image{}
	for name, entries := range layers(target) {
		all[name] = Image{Image: ImageOf(t, append(slices.Clip(base), GzipLayer(t, Tar(t, entries...)))...)}
	}
	one := GzipLayer(t, Tar(t, &tar.Header{Typeflag: tar.TypeReg, Name: "f", Linkname: "x", Mode: 0o644}))
	all["layers"] = Image{ImageOf(t, slices.Repeat([]v1.Layer{one}, 600)...), "600 layers; more than 499 cannot be mounted"}
	all["diffid"] = Image{lies(t), "the image's config says"}
	all["empty-layer"] = Image{ImageOf(t, LayerOf(t, nil, compression.None, types.DockerUncompressedLayer)), ""}
	return all
}

// Configs returns images whose layer is harmless.
func Configs(t testing.TB) map[string]Image {
	t.Helper()
	all := map[string]Image{}
	for name, change := range configs() {
		all[name] = Image{Image: withConfig(t, change)}
	}
	return all
}

// layers returns entries that lead out of the image.
func layers(target string) map[string][]*tar.Header {
	up := strings.Repeat("../", 40) + target[1:]
	file := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: "evil", Mode: 0o666}
	}
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: to}
	}
	deep := strings.Repeat("d/", 1000)
	return map[string][]*tar.Header{
		"absolute":           {file(target + "/canary0"), file("//" + target + "/canary1")},
		"parent":             {file(up + "/canary0"), file("a/" + up + "/canary1")},
		"link-then-file":     {link("l", target), file("l/canary0"), link("r", up), file("r/canary1"), file("r/new")},
		"link-of-links":      {link("a", "/"), link("a/b", target), file("b/canary0"), link("c", "a"), file("c" + target + "/canary1")},
		"link-then-folder":   {link("l", target), {Typeflag: tar.TypeDir, Name: "l/", Mode: 0o777}, {Typeflag: tar.TypeDir, Name: "l/folder", Mode: 0o777}},
		"hard-absolute":      {hard(target + "/canary0"), file("h")},
		"hard-parent":        {hard(up + "/canary0"), file("h")},
		"hard-through-link":  {link("l", target), hard("l/canary0"), file("h")},
		"hard-to-link":       {link("l", target+"/canary0"), hard("l"), file("h")},
		"devices":            {{Typeflag: tar.TypeBlock, Name: "sda", Mode: 0o666, Devmajor: 8}, {Typeflag: tar.TypeChar, Name: "mem", Mode: 0o666, Devmajor: 1, Devminor: 1}, {Typeflag: tar.TypeChar, Name: "etc/passwd", Mode: 0o666, Devmajor: 1, Devminor: 5}},
		"pipes":              {{Typeflag: tar.TypeFifo, Name: "etc/passwd", Mode: 0o666}, {Typeflag: tar.TypeFifo, Name: "etc/group", Mode: 0o666}},
		"setuid":             {{Typeflag: tar.TypeReg, Name: "root", Linkname: "evil", Mode: 0o6777}},
		"whiteout-climbs":    {file(".wh..."), file("a/.wh..."), file("a/.wh..")},
		"whiteout-of-parent": {link("l", target), file("l/.wh.canary0"), file(up + "/.wh.canary1")},
		"opaque-on-link":     {link("l", target), file("l/.wh..wh..opq")},
		"names-of-4096":      {file(strings.Repeat("n/", 2047) + "f"), file(strings.Repeat("n", 4096))},
		"deep":               {file(deep + "file"), link(deep+"up", strings.Repeat("../", 2000))},
		"xattrs": {{Typeflag: tar.TypeReg, Name: "x", Linkname: "x", Mode: 0o644, PAXRecords: map[string]string{
			"SCHILY.xattr.trusted.overlay.redirect": target, "SCHILY.xattr.security.selinux": "system_u:object_r:init_t:s0", "SCHILY.xattr.user.long": strings.Repeat("x", 60_000),
		}}, {Typeflag: tar.TypeDir, Name: "redirected", Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": target, "SCHILY.xattr.trusted.overlay.opaque": "y"}}},
		"root-is-a-file": {file("."), file("etc")},
		"root-is-a-link": {link(".", target), file("canary0"), file("./canary1")},
	}
}

func configs() map[string]func(*v1.Config) {
	huge := strings.Repeat("x", 3<<20)
	return map[string]func(*v1.Config){
		"env":        func(c *v1.Config) { c.Env = []string{"HUGE=" + huge} },
		"entrypoint": func(c *v1.Config) { c.Entrypoint = []string{huge} },
		"user":       func(c *v1.Config) { c.User = "../../.." },
		"user-long":  func(c *v1.Config) { c.User = huge },
		"user-range": func(c *v1.Config) { c.User = "4294967295:4294967296" },
		"folder":     func(c *v1.Config) { c.WorkingDir = "/../../../../" + huge[:5000] },
		"stopsignal": func(c *v1.Config) { c.StopSignal = "SIG" + huge },
		"volumes":    func(c *v1.Config) { c.Volumes = map[string]struct{}{"/../../../../etc": {}, "": {}, huge[:5000]: {}} },
	}
}

func withConfig(t testing.TB, change func(*v1.Config)) v1.Image {
	t.Helper()
	img := ImageOf(t, GzipLayer(t, Tar(t, &tar.Header{Typeflag: tar.TypeReg, Name: "f", Linkname: "x", Mode: 0o644})))
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	change(&file.Config)
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// lies returns an image whose config names other content than its layer has.
func lies(t testing.TB) v1.Image {
	t.Helper()
	img := withConfig(t, func(*v1.Config) {})
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}
