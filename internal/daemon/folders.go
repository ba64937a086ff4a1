package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"wherry.dev/internal/config"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/record"
)

// ours are the names that Wherry gives in a data dir, or takes there: nothing else in it is
// used, and nothing else is ever removed. The last is that of a disk of its own.
var ours = []string{
	"cni", "cri", "etcd", "images", "instance.json", "kubeconfig", "kubelet", "lock", "log", "manifests", "pki", "runtime.json", "store",
	"lost+found",
}

// isOurs reports whether an entry of a data dir is Wherry's, or a write of it that was
// cut short.
func isOurs(name string) bool { return slices.Contains(ours, name) || record.IsTemporary(name) }

// foreign lists what in a data dir is somebody else's.
func foreign(dataDir string) ([]string, error) {
	entries, err := os.ReadDir(dataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !isOurs(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// checkDataDir refuses a folder in which other things lie and no instance has run, such as
// /var: the logs of both would be in its log, and a purge would take those of others.
func checkDataDir(dataDir string) error {
	if hasRun(dataDir) {
		return nil
	}
	others, err := foreign(dataDir)
	if err != nil || len(others) == 0 {
		return err
	}
	return fmt.Errorf("%s is no data dir of Wherry's: it holds %s, and no record of an instance; give --data-dir a folder of its own",
		dataDir, some(others))
}

// checkDirs refuses folders that are somebody else's, or not those of this instance.
func checkDirs(dataDir, runDir string) error {
	return errors.Join(checkDataDir(dataDir), checkMoved(dataDir, lastRunDir(dataDir), runDir))
}

// isFresh reports whether nothing is in a run dir yet. It refuses one that holds other
// things, such as /run: all that is there goes with the next down.
func isFresh(runDir string) (bool, error) {
	entries, err := os.ReadDir(runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(entries) == 0 {
		return true, nil
	}
	if owner, err := runDirOwner(runDir); err != nil || owner != "" {
		return false, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if slices.Contains(names, "cri") { // an instance's that was started by an older Wherry
		return false, nil
	}
	return false, fmt.Errorf("%s is no run dir of Wherry's: it holds %s; give --run-dir a folder of its own", runDir, some(names))
}

// some names the first of a list.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// hasRun reports whether an instance, or a runtime alone, has left its record.
func hasRun(dataDir string) bool {
	for _, file := range []string{instanceFile(dataDir), runtimeFile(dataDir)} {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// RunDirOf returns the run dir of the instance with a data dir: the given one, or that of
// its last start, or the default.
func RunDirOf(dataDir, given string) (string, error) {
	last := lastRunDir(dataDir)
	switch given {
	case "":
		if last == "" {
			last = config.DefaultRunDir
		}
		return last, nil
	case last:
		return last, nil
	}
	return given, checkMoved(dataDir, last, given)
}

// checkMoved refuses a run dir other than that of the last start while what was started is
// known there alone.
func checkMoved(dataDir, last, now string) error {
	if last == "" || last == now {
		return nil
	}
	owner, err := runDirOwner(last)
	if err != nil || owner != dataDir {
		return err
	}
	return fmt.Errorf("the instance with --data-dir %s runs with --run-dir %s, not %s; give that one, or `wherry down` it first", dataDir, last, now)
}

// lastRunDir is the run dir of the last start; "" where no record, or none that can be
// read, tells it.
func lastRunDir(dataDir string) string {
	var node config.Config
	if _, err := record.Read(instanceFile(dataDir), &node); err == nil {
		return node.RunDir
	}
	var alone cri.Config
	if _, err := record.Read(runtimeFile(dataDir), &alone); err == nil && alone.State != "" {
		return filepath.Dir(alone.State)
	}
	return ""
}
