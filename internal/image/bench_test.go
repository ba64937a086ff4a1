package image_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

// textLayers returns layers of files that compress to two thirds: 50 MiB in five layers as
// transported.
func textLayers(b *testing.B, layers, files, size int) []v1.Layer {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 4096)
	for i := range words {
		words[i] = make([]byte, 3+r.IntN(12))
		for j := range words[i] {
			words[i][j] = byte(r.UintN(256))
		}
	}
	var out []v1.Layer
	for i := range layers {
		root := images.Root{}
		for f := range files {
			data := make([]byte, 0, size)
			for len(data) < size {
				data = append(data, words[r.IntN(len(words))]...)
			}
			root[fmt.Sprintf("l%d/d%d/f%d", i, f%10, f)] = images.File{Data: data, Mode: 0o644}
		}
		out = append(out, gzLayer(b, rootTar(b, root)))
	}
	return out
}

// BenchmarkPull pulls an image of five layers and 50 MiB from loopback. Unpacking dominates:
// gunzip, the digest of the content, writing the files.
func BenchmarkPull(b *testing.B) {
	layers := textLayers(b, 5, 60, 250<<10)
	img := imageOf(b, layers...)
	var size int64
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			b.Fatal(err)
		}
		size += n
	}
	srv := plain(b)
	ref := srv.Push(b, "bench:1", img)
	b.SetBytes(size)
	b.ReportMetric(float64(size)/(1<<20), "MiB")
	for b.Loop() {
		b.StopTimer()
		s := open(b, b.TempDir())
		b.StartTimer()
		if _, err := s.Pull(b.Context(), ref, image.PullOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPullSmall measures the cost of a pull without the size of the image.
func BenchmarkPullSmall(b *testing.B) {
	srv := plain(b)
	ref := srv.Push(b, "bench:1", twoLayers(b))
	for b.Loop() {
		b.StopTimer()
		s := open(b, b.TempDir())
		b.StartTimer()
		pull(b, s, ref)
	}
}

// BenchmarkPullPresent measures the cost of imagePullPolicy: Always if nothing is new.
func BenchmarkPullPresent(b *testing.B) {
	srv, s := plain(b), open(b, b.TempDir())
	ref := srv.Push(b, "bench:1", twoLayers(b))
	pull(b, s, ref)
	for b.Loop() {
		pull(b, s, ref)
	}
}
