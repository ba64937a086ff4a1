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

// imported records which archives were imported, by name, so that a start reads only new ones.
type imported map[string]archive

type archive struct {
	Stamp  string   `json:"stamp"` // size and time
	Images []string `json:"images"`
}

// importImages imports the archives of a folder that have not been imported before, and pins the images
// of all that are there: a node without a registry could not get them back. A bad archive is reported
// and skipped: it must not keep a node from starting.
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
		one := known[e.Name()]
		if one.Stamp != stamp {
			progress("importing " + e.Name())
			imgs, err := store.Import(ctx, filepath.Join(dir, e.Name()))
			if err != nil {
				if ctx.Err() != nil {
					return err
				}
				klog.FromContext(ctx).Error(err, "Skipped an image archive")
				progress(err.Error())
				continue
			}
			one = archive{Stamp: stamp}
			for _, img := range imgs {
				one.Images = append(one.Images, img.ID)
			}
		}
		now[e.Name()] = one
		store.Pin(one.Images)
	}
	return record.Write(file, 2, now)
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
