package logs

import (
	"os"
	"path/filepath"
	"strings"

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

// openOf opens the log of a container that may be Docker's.
func openOf(path, id string) (*os.File, error) {
	if target := dockerLog(path, id); target != "" {
		return safepath.Direct(target)
	}
	return open(path)
}

// dockerLog returns where Docker has the log of a container: cri-dockerd makes the log a link to
// it, elsewhere on the machine. Any other link is not followed, nor is one to another container's;
// then, and if the log is not a link, it returns "".
func dockerLog(path, id string) string {
	dir, name, err := folder(path)
	if err != nil {
		return ""
	}
	defer func() { _ = dir.Close() }()
	target, err := dir.Readlink(name)
	if err != nil || len(id) != 64 || !filepath.IsAbs(target) {
		return ""
	}
	if !strings.HasSuffix(filepath.Clean(target), "/containers/"+id+"/"+id+"-json.log") {
		return ""
	}
	return target
}
