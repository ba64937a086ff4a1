// Package lists encodes long lists in protobuf on all CPUs. The library does so on one, while the client waits: of a list
// of ten thousand pods, that is a third of the time.
package lists

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"reflect"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// chunk is how many items are encoded at once.
	chunk = 64
	// long is from how many items on more than one CPU is worth it.
	long = 8 * chunk
)

// prefix is what everything in Kubernetes' protobuf begins with.
var prefix = []byte{'k', '8', 's', 0}

// The keys of the two fields of a list: their numbers, and that bytes of a given length follow.
const (
	metadataKey = 1<<3 | 2
	itemsKey    = 2<<3 | 2
)

// codecs are the library's, with another serializer for protobuf.
type codecs struct {
	runtime.NegotiatedSerializer
	types []runtime.SerializerInfo
}

// Codecs returns the codecs, such that they encode long lists in parallel.
func Codecs(from runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	c := codecs{NegotiatedSerializer: from, types: slices.Clone(from.SupportedMediaTypes())}
	for i := range c.types {
		if c.types[i].MediaType == runtime.ContentTypeProtobuf {
			c.types[i].Serializer = parallel{c.types[i].Serializer}
		}
	}
	return c
}

// SupportedMediaTypes returns the library's.
func (c codecs) SupportedMediaTypes() []runtime.SerializerInfo { return c.types }

// parallel is the library's serializer, but for long lists.
type parallel struct{ runtime.Serializer }

var _ runtime.EncoderWithAllocator = parallel{}

// Encode writes the object.
func (p parallel) Encode(obj runtime.Object, w io.Writer) error {
	if l := of(obj); l != nil {
		return l.encode(w)
	}
	return p.Serializer.Encode(obj, w)
}

// EncodeWithAllocator writes the object. Long lists have buffers of their own.
func (p parallel) EncodeWithAllocator(obj runtime.Object, w io.Writer, memory runtime.MemoryAllocator) error {
	if l := of(obj); l != nil {
		return l.encode(w)
	}
	if e, ok := p.Serializer.(runtime.EncoderWithAllocator); ok {
		return e.EncodeWithAllocator(obj, w, memory)
	}
	return p.Serializer.Encode(obj, w)
}

// item is what the generated types of Kubernetes implement.
type item interface {
	Size() int
	MarshalToSizedBuffer(data []byte) (int, error)
}

// list is a list on its way.
type list struct {
	unknown runtime.Unknown // has its kind
	meta    *metav1.ListMeta
	items   []item
	sizes   []int
}

// of returns the list that obj is, or nil if it is to be left to the library.
func of(obj runtime.Object) *list {
	own, ok := obj.(metav1.ListMetaAccessor)
	if !ok || meta.LenList(obj) < long || goruntime.GOMAXPROCS(0) == 1 || !regular(reflect.TypeOf(obj)) {
		return nil
	}
	l := &list{}
	if l.meta, ok = own.GetListMeta().(*metav1.ListMeta); !ok {
		return nil
	}
	kind := obj.GetObjectKind().GroupVersionKind()
	l.unknown.TypeMeta = runtime.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}
	objs, err := meta.ExtractList(obj)
	if err != nil {
		return nil
	}
	l.items, l.sizes = make([]item, len(objs)), make([]int, len(objs))
	for i, o := range objs {
		if l.items[i], ok = o.(item); !ok {
			return nil
		}
	}
	return l
}

// known has whether types are regular, by reflect.Type.
var known sync.Map

// regular reports whether a list in protobuf is its metadata and its items, as fields 1 and 2, and nothing else.
func regular(t reflect.Type) bool {
	if is, ok := known.Load(t); ok {
		return is == true
	}
	is := t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
	if is {
		s := t.Elem()
		tag := func(i int) string { return s.Field(i).Tag.Get("protobuf") }
		is = s.NumField() == 3 &&
			s.Field(0).Type == reflect.TypeFor[metav1.TypeMeta]() && tag(0) == "" &&
			s.Field(1).Type == reflect.TypeFor[metav1.ListMeta]() && tag(1) == "bytes,1,opt,name=metadata" &&
			tag(2) == "bytes,2,rep,name=items"
	}
	known.Store(t, is)
	return is
}

// encode writes the list.
func (l *list) encode(w io.Writer) error {
	metadata, err := l.meta.Marshal()
	if err != nil {
		return err
	}
	head := append(binary.AppendUvarint([]byte{metadataKey}, uint64(len(metadata))), metadata...)
	bytes, err := l.measure()
	if err != nil {
		return err
	}
	total := len(head)
	for _, n := range bytes {
		total += n
	}
	if _, err := w.Write(prefix); err != nil {
		return err
	}
	_, err = l.unknown.MarshalToWriter(w, total, func(w io.Writer) (int, error) {
		if n, err := w.Write(head); err != nil {
			return n, err
		}
		return total, l.write(w, bytes)
	})
	return err
}

// chunks returns how many there are.
func (l *list) chunks() int { return (len(l.items) + chunk - 1) / chunk }

// bounds returns the first item of a chunk, and that after the last one.
func (l *list) bounds(i int) (first, end int) { return i * chunk, min((i+1)*chunk, len(l.items)) }

// measure finds the sizes of all items, and returns those of the chunks in bytes.
func (l *list) measure() ([]int, error) {
	out, errs := make([]int, l.chunks()), make([]error, workers())
	var next atomic.Int64
	var all sync.WaitGroup
	for worker := range errs {
		all.Go(func() {
			defer caught(&errs[worker])
			for i := int(next.Add(1) - 1); i < len(out); i = int(next.Add(1) - 1) {
				for j, end := l.bounds(i); j < end; j++ {
					n := l.items[j].Size()
					l.sizes[j] = n
					out[i] += 1 + varint(n) + n
				}
			}
		})
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// caught turns a panic of generated code into an error: outside of a request's own goroutine, it would end the process.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: %v", errChanged, r)
	}
}

func workers() int { return goruntime.GOMAXPROCS(0) }

// varint returns how many bytes a length takes.
func varint(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }

// buffers are reused: a chunk is tens of kilobytes, which would be garbage at once.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// encoded is a chunk, in a buffer of the pool.
type encoded struct {
	in  *[]byte
	err error
}

// write encodes the chunks, of sizes in bytes, and writes them in order: while one is written, the next ones are encoded,
// and no more, since a client may be slow.
func (l *list) write(w io.Writer, bytes []int) error {
	results := make([]chan encoded, len(bytes))
	for i := range results {
		results[i] = make(chan encoded, 1)
	}
	var next atomic.Int64
	slots, over := make(chan struct{}, workers()+2), make(chan struct{})
	var all sync.WaitGroup
	for range workers() {
		all.Go(func() {
			for {
				select {
				case slots <- struct{}{}: // before a chunk is taken, so that the first one that is missing always has a slot
				case <-over:
					return
				}
				i := int(next.Add(1) - 1)
				if i >= len(bytes) {
					return
				}
				results[i] <- l.chunk(i, bytes[i])
			}
		})
	}
	defer all.Wait()
	defer close(over)
	for _, result := range results {
		r := <-result
		err := r.err
		if err == nil {
			_, err = w.Write(*r.in)
		}
		buffers.Put(r.in)
		<-slots
		if err != nil {
			return err
		}
	}
	return nil
}

// errChanged says that somebody changes an object that others read.
var errChanged = errors.New("an object has changed while it was encoded")

// chunk encodes one chunk.
func (l *list) chunk(i, size int) (e encoded) {
	to, _ := buffers.Get().(*[]byte)
	e.in = to
	defer caught(&e.err)
	if cap(*to) < size {
		*to = make([]byte, 0, size+size/4)
	}
	out := (*to)[:size]
	at := 0
	for j, end := l.bounds(i); j < end; j++ {
		n := l.sizes[j]
		if at+1+varint(n)+n > size {
			return encoded{to, errChanged}
		}
		out[at] = itemsKey
		at += 1 + binary.PutUvarint(out[at+1:], uint64(n))
		written, err := l.items[j].MarshalToSizedBuffer(out[at : at+n])
		if err != nil {
			return encoded{to, err}
		}
		if written != n {
			return encoded{to, fmt.Errorf("%w: %d bytes instead of %d", errChanged, written, n)}
		}
		at += n
	}
	*to = out
	return encoded{to, nil}
}
