package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/volume"
)

// ClearEnded removes the volumes of pods that were ending when the kubelet of a root directory
// stopped: nothing else will clean them up. Pods that continue at the next start keep their
// volumes, as after a reboot. When it is called, nothing may be running or mounted there any more.
func ClearEnded(rootDir string) error {
	dir := recordsDir(rootDir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	records, err := podworker.OpenRecords(dir)
	if err != nil {
		return err
	}
	uids, err := records.List()
	if err != nil {
		return err
	}
	volumes := &volume.Mounter{Dirs: criconfig.Dirs{Root: rootDir}}
	var errs []error
	for _, uid := range uids {
		rec, err := records.Read(uid)
		if err == nil && rec.Ending != nil { // the next start reports one that cannot be read
			errs = append(errs, volumes.Clear(uid))
		}
	}
	return errors.Join(errs...)
}

func recordsDir(rootDir string) string { return filepath.Join(rootDir, "records") }
