package logs

import (
	"os"
	"path/filepath"

	"wherry.dev/internal/safepath"
)

// folder opens the directory of a log, whose path ends in POD/CONTAINER/FILE. Pods that collect
// logs have a hostPath to all of them and may write there: whatever links they create, only a log
// is ever opened.
func folder(path string) (dir *safepath.Dir, name string, err error) {
	container, name := filepath.Split(path)
	pod := filepath.Dir(filepath.Clean(container))
	all, err := safepath.Open(filepath.Dir(pod))
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = all.Close() }()
	dir, err = all.Sub(filepath.Join(filepath.Base(pod), filepath.Base(container)))
	return dir, name, err
}

// open opens a log for reading.
func open(path string) (*os.File, error) {
	dir, name, err := folder(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Regular(name)
}
