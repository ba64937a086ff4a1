package lists

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// protobuf returns the serializer for protobuf of some codecs.
func protobuf(t testing.TB, c runtime.NegotiatedSerializer) runtime.Serializer {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(c.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("there is no serializer for protobuf")
	}
	return info.Serializer
}

func factory() serializer.CodecFactory {
	return serializer.NewCodecFactory(scheme.Scheme, serializer.WithStreamingCollectionEncodingToProtobuf())
}

func pods(n int) *corev1.PodList {
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "12", Continue: "more", RemainingItemCount: new(int64(7))}}
	l.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "PodList"})
	for i := range n {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: "default", Labels: map[string]string{"a": "b"}}}
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: strings.Repeat("i", rand.IntN(300))}}
		l.Items = append(l.Items, p)
	}
	return l
}

// TestTheBytesAreTheLibrarys: for lists of all lengths around those of chunks, and of other kinds.
func TestTheBytesAreTheLibrarys(t *testing.T) {
	ours, theirs := protobuf(t, Codecs(factory())), protobuf(t, factory())
	classes := &storagev1.StorageClassList{}
	for i := range 2 * long {
		classes.Items = append(classes.Items, storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	for name, obj := range map[string]runtime.Object{
		"short": pods(long - 1), "long": pods(long), "one more": pods(long + 1), "many": pods(20*long + 3), "empty": pods(0),
		"without metadata": classes, "no list": &pods(1).Items[0],
	} {
		var got, want bytes.Buffer
		if err := theirs.Encode(obj, &want); err != nil {
			t.Fatal(err)
		}
		for what, encode := range map[string]func() error{
			"alone": func() error { return ours.Encode(obj, &got) },
			"with an allocator": func() error {
				return ours.(runtime.EncoderWithAllocator).EncodeWithAllocator(obj, &got, &runtime.Allocator{})
			},
		} {
			got.Reset()
			if err := encode(); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
				t.Errorf("%s, %s: %d bytes, want %d: %v", name, what, got.Len(), want.Len(), err)
			}
		}
	}
	if of(pods(long)) == nil || of(classes) == nil || of(pods(long-1)) != nil || of(&pods(1).Items[0]) != nil {
		t.Error("the wrong objects are encoded in parallel")
	}
}

// TestCodecsEncodeInParallel: what a server negotiates is the parallel one.
func TestCodecsEncodeInParallel(t *testing.T) {
	c := Codecs(factory())
	info, _ := runtime.SerializerInfoForMediaType(c.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	var got bytes.Buffer
	w := &counting{Writer: &got}
	l := pods(2 * long)
	if err := c.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(l, w); err != nil {
		t.Fatal(err)
	}
	if w.largest < chunk*20 {
		t.Errorf("the largest write has %d bytes: the items were written one by one", w.largest)
	}
	back, _, err := factory().UniversalDeserializer().Decode(got.Bytes(), nil, nil)
	if read, ok := back.(*corev1.PodList); err != nil || !ok || len(read.Items) != len(l.Items) || read.Items[len(l.Items)-1].Name != l.Items[len(l.Items)-1].Name {
		t.Errorf("%T, %v", back, err)
	}
}

type counting struct {
	io.Writer
	largest int
}

func (c *counting) Write(p []byte) (int, error) {
	c.largest = max(c.largest, len(p))
	return c.Writer.Write(p)
}

// full takes so many writes.
type full struct{ left int }

var errFull = errors.New("full")

func (f *full) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// TestAClientThatGoes ends the encoding, wherever it is, and leaves nothing running.
func TestAClientThatGoes(t *testing.T) {
	ours, l := protobuf(t, Codecs(factory())), pods(20*long)
	for i := range 60 {
		if err := ours.Encode(l, &full{left: i}); !errors.Is(err, errFull) {
			t.Errorf("after %d writes: %v", i, err)
		}
	}
}

// liar is an object of another size than it says.
type liar struct{ corev1.Pod }

func (l *liar) Size() int { return l.Pod.Size() - 5 }

func TestAnObjectThatChangesIsAnError(t *testing.T) {
	l := of(pods(2 * long))
	l.items[long+3] = &liar{pods(1).Items[0]}
	if err := l.encode(io.Discard); !errors.Is(err, errChanged) {
		t.Errorf("%v", err)
	}
	l = of(pods(2 * long))
	l.items[3] = nil
	if err := l.encode(io.Discard); !errors.Is(err, errChanged) {
		t.Errorf("%v", err)
	}
}

// BenchmarkList encodes 10,000 pods, as the library does and in parallel.
func BenchmarkList(b *testing.B) {
	l := pods(10000)
	for name, s := range map[string]runtime.Serializer{"library": protobuf(b, factory()), "parallel": protobuf(b, Codecs(factory()))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Encode(l, io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
