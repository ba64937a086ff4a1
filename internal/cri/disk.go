package cri

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"wherry.dev/internal/record"
)

// recordVersion is the version of all records of this package.
const recordVersion = 1

// saveRecord replaces a record atomically, without waiting for the disk: the record must outlive
// this process, and does once the kernel has it. After a crash of the machine nothing runs any
// more, so a lost record only means a folder to sweep; an fsync would cost more than the rest of
// a pod's start.
func saveRecord(path string, v any) error { return record.WriteCached(path, recordVersion, v) }

// loadRecord reads a record. ok is false if there is none, or none that can be read. One bad file
// must not keep a node from starting: it is logged, and what it stands for is removed.
func loadRecord(log klog.Logger, path string, v any) (ok bool, err error) {
	_, err = record.Read(path, v)
	var corrupt *record.CorruptError
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case errors.As(err, &corrupt), errors.Is(err, unix.EIO), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EUCLEAN):
		log.Error(err, "A record is damaged; what it stands for is cleared away", "file", path)
		return false, nil
	}
	return false, err
}

// message keeps a CRI message in a JSON record, in its own encoding.
type message[T any, P interface {
	*T
	proto.Message
}] struct{ m P }

func (b message[T, P]) MarshalJSON() ([]byte, error) {
	raw, err := proto.Marshal(b.m)
	if err != nil {
		return nil, err
	}
	return json.Marshal(raw)
}

func (b *message[T, P]) UnmarshalJSON(doc []byte) error {
	var raw []byte
	if err := json.Unmarshal(doc, &raw); err != nil {
		return err
	}
	b.m = new(T)
	return proto.Unmarshal(raw, b.m)
}

// subdirs returns the names of the folders in dir.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// writeFile is os.WriteFile, but makes the folder if it is missing.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// writeProgram writes a file that is executed soon. It keeps the process from forking meanwhile:
// a child forked while the file is open for writing has it open, too, until its own exec, and the
// kernel refuses to run a file that is open for writing (ETXTBSY).
func writeProgram(path string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return writeFile(path, program, 0o755)
}
