package orphans

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/volume"
)

// ClearEnded removes the volumes of pods that were ending when the kubelet of a root directory
// stopped: nothing else will clean them up. Pods that continue at the next start keep their
// volumes, as after a reboot. When it is called, nothing may be running or mounted there any more.
func ClearEnded(ctx context.Context, rootDir string) error {
	dirs := criconfig.Dirs{Root: rootDir}
	if _, err := os.Stat(dirs.Records()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	records, err := podworker.OpenRecords(dirs.Records())
	if err != nil {
		return err
	}
	uids, err := records.List()
	if err != nil {
		return err
	}
	volumes := &volume.Mounter{Dirs: dirs}
	var errs []error
	for _, uid := range uids {
		rec, err := records.Read(uid)
		if err == nil && rec.Ending != nil { // the next start reports one that cannot be read
			errs = append(errs, volumes.Clear(ctx, uid))
		}
	}
	return errors.Join(errs...)
}
