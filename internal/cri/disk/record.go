package disk

import (
	"encoding/json"
	"errors"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"wherry.dev/internal/record"
)

// recordVersion is the version of all records of this package.
const recordVersion = 1

// Save replaces a record atomically, without waiting for the disk: the record must outlive
// this process, and does once the kernel has it. After a crash of the machine nothing runs any
// more, so a lost record only means a folder to sweep; an fsync would cost more than the rest of
// a pod's start.
func Save(path string, v any) error { return record.WriteCached(path, recordVersion, v) }

// Load reads a record. ok is false if there is none, or none that can be read. One bad file
// must not keep a node from starting: it is logged, and what it stands for is removed.
func Load(log klog.Logger, path string, v any) (ok bool, err error) {
	_, err = record.Read(path, v)
	var corrupt *record.CorruptError
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case errors.As(err, &corrupt), errors.Is(err, unix.EIO), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EUCLEAN):
		log.Error(err, "A record is damaged, removing what it describes", "file", path)
		return false, nil
	}
	return false, err
}

// Message keeps a CRI message in a JSON record, in its own encoding.
type Message[T any, P interface {
	*T
	proto.Message
}] struct{ M P }

// MarshalJSON implements json.Marshaler.
func (b Message[T, P]) MarshalJSON() ([]byte, error) {
	raw, err := proto.Marshal(b.M)
	if err != nil {
		return nil, err
	}
	return json.Marshal(raw)
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Message[T, P]) UnmarshalJSON(doc []byte) error {
	var raw []byte
	if err := json.Unmarshal(doc, &raw); err != nil {
		return err
	}
	b.M = new(T)
	return proto.Unmarshal(raw, b.M)
}
