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

// ours are the names that Wherry creates or reads in a data dir: nothing else in it is used, and
// nothing else is ever removed. The last one is found on a data dir that is a disk of its own.
var ours = []string{
	"cluster.json", "servers.json", "cni", "cri", "etcd", "images", "instance.json", "kubeconfig", "kubelet", "lock", "log", "manifests", "pki", "runtime.json", "store", "volumes",
	"lost+found",
}

// isOurs reports whether an entry of a data dir is Wherry's, or left by a write of Wherry's that
// was cut short.
func isOurs(name string) bool { return slices.Contains(ours, name) || record.IsTemporary(name) }

// foreign lists what in a data dir is not Wherry's.
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

// checkDataDir refuses a folder that holds other things and in which no instance has run, such as
// /var: the logs of others would be mixed with its own, and a purge would delete them.
func checkDataDir(dataDir string) error {
	if hasRun(dataDir) {
		return nil
	}
	others, err := foreign(dataDir)
	if err != nil || len(others) == 0 {
		return err
	}
	return fmt.Errorf("%s is not a data dir of Wherry: it holds %s, and no record of an instance; give --data-dir a folder of its own",
		dataDir, some(others))
}

// checkDirs refuses folders that belong to somebody else, or that are not those of this instance.
func checkDirs(dataDir, runDir string) error {
	return errors.Join(checkDataDir(dataDir), checkMoved(dataDir, lastRunDir(dataDir), runDir))
}

// isFresh reports whether a run dir is still empty. It refuses one that holds other things, such as
// /run: everything in it is removed by the next down.
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
	if slices.Contains(names, "cri") { // one of an instance that was started by an older Wherry
		return false, nil
	}
	return false, fmt.Errorf("%s is not a run dir of Wherry: it holds %s; give --run-dir a folder of its own", runDir, some(names))
}

// some joins the first few names of a list.
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

// checkMoved refuses a run dir other than that of the last start as long as what was started is
// known only there.
func checkMoved(dataDir, last, now string) error {
	if last == "" || last == now {
		return nil
	}
	owner, err := runDirOwner(last)
	if err != nil || owner != dataDir {
		return err
	}
	return fmt.Errorf("the instance with --data-dir %s runs with --run-dir %s, not %s; use that one, or run `wherry down` first", dataDir, last, now)
}

// lastRunDir returns the run dir of the last start; "" if no readable record names it.
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
