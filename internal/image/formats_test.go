package image_test

import (
	"archive/tar"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/image"
	"wherry.dev/test/hostile"
	"wherry.dev/test/images"
)

func TestFormats(t *testing.T) {
	data := rootTar(t, images.Root{"a": {Data: []byte("content"), Mode: 0o644}})
	for name, img := range map[string]v1.Image{
		"docker gzip":  imageOf(t, gzLayer(t, data)),
		"docker plain": imageOf(t, layerOf(t, data, compression.None, types.DockerUncompressedLayer)),
		"oci gzip":     asOCI(imageOf(t, layerOf(t, data, compression.GZip, types.OCILayer))),
		"oci zstd":     asOCI(imageOf(t, layerOf(t, data, compression.ZStd, types.OCILayerZStd))),
		"oci plain":    asOCI(imageOf(t, layerOf(t, data, compression.None, types.OCIUncompressedLayer))),
		"wrong type":   asOCI(imageOf(t, layerOf(t, data, compression.ZStd, types.OCILayer))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, s := plain(t), open(t, t.TempDir())
			ref := srv.Push(t, "x:1", img)
			got := pull(t, s, ref)
			if diff := cmp.Diff([]string{"a"}, tree(t, overlay(t, s, got.ID))); diff != "" {
				t.Error(diff)
			}
			digest, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			byDigest := srv.Host + "/x@" + digest.String()
			if diff := cmp.Diff([]string{byDigest}, got.Digests); diff != "" {
				t.Error(diff)
			}
			fresh := open(t, t.TempDir())
			if again := pull(t, fresh, byDigest); again.ID != got.ID || len(again.Tags) != 0 {
				t.Errorf("by digest: %+v", again)
			}
		})
	}
}

// imagePullPolicy: Always asks only for the digest if nothing is new.
func TestPullOfWhatIsThereReadsNothing(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	img := twoLayers(t)
	first := pull(t, s, srv.Push(t, "demo:1", img))
	srv.Gets()
	second := pull(t, s, srv.Push(t, "demo:2", img))
	if n := srv.Gets(); n > 0 {
		t.Errorf("%d documents were read", n)
	}
	if second.ID != first.ID || len(second.Tags) != 2 {
		t.Errorf("got %+v", second)
	}
}

func TestIndexGivesThisMachinesImage(t *testing.T) {
	other := v1.Platform{OS: "linux", Architecture: "s390x"}
	here := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	mine := asOCI(imageOf(t, layerOf(t, rootTar(t, images.Root{"mine": {}}), compression.GZip, types.OCILayer)))
	theirs := asOCI(imageOf(t, layerOf(t, rootTar(t, images.Root{"theirs": {}}), compression.GZip, types.OCILayer)))
	index := func(adds ...mutate.IndexAddendum) v1.ImageIndex { return mutate.AppendManifests(empty.Index, adds...) }
	of := func(i mutate.Appendable, p *v1.Platform) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: p}}
	}
	attestation := of(theirs, &v1.Platform{OS: "unknown", Architecture: "unknown"})
	srv := plain(t)
	for tag, idx := range map[string]v1.ImageIndex{
		"flat":   index(of(theirs, &other), attestation, of(mine, &here)),
		"nested": index(of(theirs, &other), of(index(attestation, of(mine, &here)), nil)),
	} {
		s := open(t, t.TempDir())
		got := pull(t, s, srv.Push(t, "multi:"+tag, idx))
		if diff := cmp.Diff([]string{"mine"}, tree(t, overlay(t, s, got.ID))); diff != "" {
			t.Errorf("%s: %s", tag, diff)
		}
		want, err := idx.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Digests) != 1 || !strings.HasSuffix(got.Digests[0], want.String()) {
			t.Errorf("%s: the index has digest %s, the image is called %v", tag, want, got.Digests)
		}
	}
	s := open(t, t.TempDir())
	_, err := s.Pull(t.Context(), srv.Push(t, "multi:none", index(of(theirs, &other), attestation)), image.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), "no image for linux/"+runtime.GOARCH) {
		t.Errorf("got %v", err)
	}
	checkEmpty(t, s)
}

func TestImageOfAnotherPlatformIsRefused(t *testing.T) {
	img := imageOf(t, gzLayer(t, rootTar(t, images.Root{"a": {}})))
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture = "s390x"
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir())
	_, err = s.Pull(t.Context(), push(t, img), image.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), "the image is for linux/s390x") {
		t.Errorf("got %v", err)
	}
}

func TestArtifactIsRefused(t *testing.T) {
	img := mutate.ConfigMediaType(asOCI(imageOf(t, gzLayer(t, rootTar(t, images.Root{"a": {}})))), "application/vnd.example.chart")
	s := open(t, t.TempDir())
	_, err := s.Pull(t.Context(), push(t, img), image.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), "artifact of type application/vnd.example.chart") {
		t.Errorf("got %v", err)
	}
}

func TestAttributesOfFiles(t *testing.T) {
	when := time.Unix(1234567890, 0)
	data := tarOf(t,
		&tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o1750, Uid: 7, Gid: 8, ModTime: when},
		&tar.Header{Typeflag: tar.TypeReg, Name: "d/file", Linkname: "text", Mode: 0o4751, Uid: 1000, Gid: 1001, ModTime: when,
			PAXRecords: map[string]string{"SCHILY.xattr.user.color": "blue"}},
		&tar.Header{Typeflag: tar.TypeReg, Name: "d/capable", Mode: 0o755,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}},
		&tar.Header{Typeflag: tar.TypeLink, Name: "d/hard", Linkname: "d/file", Mode: 0o4751, Uid: 1000, Gid: 1001, ModTime: when},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "d/soft", Linkname: "/d/file"},
		&tar.Header{Typeflag: tar.TypeChar, Name: "d/null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		&tar.Header{Typeflag: tar.TypeBlock, Name: "d/loop", Mode: 0o660, Devmajor: 7, Devminor: 0},
		&tar.Header{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o600},
	)
	child := tarOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "d/later", Linkname: "x", Mode: 0o600})
	s := open(t, t.TempDir())
	root := overlay(t, s, pull(t, s, push(t, imageOf(t, gzLayer(t, data), gzLayer(t, child)))).ID)
	stat := func(name string) (st unix.Stat_t) {
		t.Helper()
		if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	if d := stat("d"); d.Mode != unix.S_IFDIR|0o1750 || d.Uid != 7 || d.Gid != 8 {
		t.Errorf("a folder that the upper layer does not describe: %o %d:%d", d.Mode, d.Uid, d.Gid)
	}
	f := stat("d/file")
	if f.Mode != unix.S_IFREG|0o4751 || f.Uid != 1000 || f.Gid != 1001 || f.Mtim.Sec != when.Unix() {
		t.Errorf("file: %o %d:%d %d", f.Mode, f.Uid, f.Gid, f.Mtim.Sec)
	}
	if h := stat("d/hard"); h.Ino != f.Ino || f.Nlink != 2 {
		t.Errorf("hard link: inodes %d and %d, %d names", f.Ino, h.Ino, f.Nlink)
	}
	if to, err := os.Readlink(filepath.Join(root, "d/soft")); err != nil || to != "/d/file" {
		t.Errorf("symbolic link: %s %v", to, err)
	}
	for name, want := range map[string][2]uint64{"d/null": {unix.S_IFCHR | 0o666, unix.Mkdev(1, 3)}, "d/loop": {unix.S_IFBLK | 0o660, unix.Mkdev(7, 0)}, "d/fifo": {unix.S_IFIFO | 0o600, 0}} {
		if st := stat(name); uint64(st.Mode) != want[0] || st.Rdev != want[1] {
			t.Errorf("%s: mode %o device %x", name, st.Mode, st.Rdev)
		}
	}
	for attr, want := range map[string]struct {
		file string
		size int
	}{"user.color": {"d/file", 4}, "security.capability": {"d/capable", 20}} {
		if n, err := unix.Lgetxattr(filepath.Join(root, want.file), attr, nil); err != nil || n != want.size {
			t.Errorf("%s of %s: %d bytes, %v", attr, want.file, n, err)
		}
	}
}

func TestHugeLayerIsNotReadIntoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a file of 1 GiB")
	}
	const size = 1 << 30
	srv := plain(t)
	ref := srv.Push(t, "big:1", asOCI(imageOf(t, hostile.Zeros(t, size, compression.ZStd))))
	s := open(t, t.TempDir())
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	_, err := s.Pull(t.Context(), ref, image.PullOptions{Progress: func(image.Progress) {
		runtime.ReadMemStats(&now)
		most.Store(max(most.Load(), now.HeapInuse))
	}})
	if err != nil {
		t.Fatal(err)
	}
	if used := int64(most.Load()) - int64(before.HeapInuse); used > 64<<20 {
		t.Errorf("the pull of a layer of 1 GiB took %d MiB of memory", used>>20)
	}
	used, inodes, err := s.Usage()
	if err != nil || used < size || inodes != 2 {
		t.Errorf("usage: %d bytes, %d inodes, %v", used, inodes, err)
	}
}

func TestProgressEndsWithEverything(t *testing.T) {
	var layers []v1.Layer
	for i := range 3 {
		noise := make([]byte, 300<<10)
		if _, err := rand.Read(noise); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, gzLayer(t, rootTar(t, images.Root{fmt.Sprint(i): {Data: noise, Mode: 0o644}})))
	}
	s := open(t, t.TempDir())
	var calls atomic.Int64
	var last atomic.Pointer[image.Progress]
	img, err := s.Pull(t.Context(), push(t, imageOf(t, layers...)), image.PullOptions{Progress: func(p image.Progress) {
		calls.Add(1)
		if l := last.Load(); l == nil || p.LayersDone >= l.LayersDone && p.Done >= l.Done {
			last.Store(&p)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := last.Load()
	if p == nil || p.Done != p.Total || p.Total < 900<<10 || p.LayersDone != 3 || p.Layers != 3 || calls.Load() < 6 {
		t.Errorf("last of %d: %+v", calls.Load(), p)
	}
	if img.Size <= p.Total {
		t.Errorf("size %d", img.Size)
	}
}

func TestImageWithoutLayers(t *testing.T) {
	s := open(t, t.TempDir())
	img := pull(t, s, push(t, imageOf(t)))
	if layers, err := s.Layers(img.ID); err != nil || len(layers) != 0 {
		t.Errorf("%v %v", layers, err)
	}
}

func TestUsageIsWhatTheDiskHas(t *testing.T) {
	data := tarOf(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "a", Linkname: strings.Repeat("x", 100_000), Mode: 0o644},
		&tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "a"},
		&tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755})
	dir := t.TempDir()
	s := open(t, dir)
	img := pull(t, s, push(t, imageOf(t, gzLayer(t, data))))
	layers, err := s.Layers(img.ID)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(layers[0], "a"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := info.Sys().(*syscall.Stat_t).Blocks * 512
	used, inodes, err := s.Usage()
	if err != nil || int64(used) < blocks || int64(used) > blocks+3*4096 || inodes != 3 {
		t.Errorf("%d bytes (the file has %d), %d inodes, %v", used, blocks, inodes, err)
	}
}
