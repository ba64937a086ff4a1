package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"

	"wherry.dev/internal/image"
	"wherry.dev/internal/record"
)

// imported records which archives were imported: name → size and time, so that a start reads only
// new ones.
type imported map[string]string

// importImages imports the archives of a folder that have not been imported before. A bad archive
// is reported and skipped: it must not keep a node from starting.
func importImages(ctx context.Context, store *image.Store, dir string, progress func(string)) error {
	file := filepath.Join(store.Dir(), "imported.json")
	known := imported{}
	if _, err := record.Read(file, &known); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Cannot tell which archives were imported, importing all of them again")
		known = imported{}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	now := imported{}
	for _, e := range entries {
		stamp, ok := archiveStamp(e)
		if !ok {
			continue
		}
		if known[e.Name()] != stamp {
			progress("importing " + e.Name())
			if _, err := store.Import(ctx, filepath.Join(dir, e.Name())); err != nil {
				if ctx.Err() != nil {
					return err
				}
				klog.FromContext(ctx).Error(err, "Skipped an image archive")
				progress(err.Error())
				continue
			}
		}
		now[e.Name()] = stamp
	}
	return record.Write(file, 1, now)
}

func archiveStamp(e fs.DirEntry) (string, bool) {
	name := e.Name()
	if !strings.HasSuffix(name, ".tar") && !strings.HasSuffix(name, ".tar.gz") && !strings.HasSuffix(name, ".tar.zst") {
		return "", false
	}
	info, err := e.Info()
	if err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano()), true
}
