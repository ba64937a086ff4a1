package podworker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/record"
)

// RecordStore keeps the pods' records from one worker of a pod to the next. *Records, which keeps
// them on disk, implements it.
type RecordStore interface {
	// Read returns a pod's record; the zero record if there is none.
	Read(uid types.UID) (podplan.Record, error)
	// Write replaces a pod's record and returns once it is durable. WriteCached need not survive a
	// power cut.
	Write(uid types.UID, rec podplan.Record) error
	WriteCached(uid types.UID, rec podplan.Record) error
	Remove(uid types.UID) error
}

const recordVersion = 1

// Records keeps the pods' records, one file per UID. Only the pod's worker writes a record.
type Records struct{ dir string }

// OpenRecords creates the directory and removes what interrupted writes left behind.
func OpenRecords(dir string) (*Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Records{dir}, record.Sweep(dir)
}

func (r *Records) path(uid types.UID) string { return filepath.Join(r.dir, string(uid)+".json") }

// Write replaces a pod's record and returns once it is durable.
func (r *Records) Write(uid types.UID, rec podplan.Record) error {
	if err := record.Write(r.path(uid), recordVersion, rec); err != nil {
		return fmt.Errorf("record of pod %s: %w", uid, err)
	}
	return nil
}

// WriteCached replaces a pod's record atomically: it outlives the process, but reaches the disk
// only when the kernel writes it there.
func (r *Records) WriteCached(uid types.UID, rec podplan.Record) error {
	if err := record.WriteCached(r.path(uid), recordVersion, rec); err != nil {
		return fmt.Errorf("record of pod %s: %w", uid, err)
	}
	return nil
}

// Read returns a pod's record; the zero record if there is none. For a corrupt record it returns
// the zero record and a *record.CorruptError.
func (r *Records) Read(uid types.UID) (podplan.Record, error) {
	var rec podplan.Record
	_, err := record.Read(r.path(uid), &rec)
	if errors.Is(err, fs.ErrNotExist) {
		return podplan.Record{}, nil
	}
	if err != nil {
		return podplan.Record{}, fmt.Errorf("record of pod %s: %w", uid, err)
	}
	return rec, nil
}

// Remove deletes a pod's record. If it comes back after a power cut, nobody wants its pod, and it
// is removed again.
func (r *Records) Remove(uid types.UID) error {
	if err := os.Remove(r.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List returns the UIDs that have a record.
func (r *Records) List() ([]types.UID, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var out []types.UID
	for _, e := range entries {
		if uid, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			out = append(out, types.UID(uid))
		}
	}
	return out, nil
}
