// Package rootfs prepares what a container sees as its root: the lowest layer with the places of
// mounts, the sources of mounts and the places at which they may be, the working directory.
package rootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Skeletons is the folder of the lowest layers of root file systems.
type Skeletons string

// mostSkeletons is how many skeletons there may be: pods that always mount at new places must not
// fill the disk with them.
const mostSkeletons = 256

// newSkeleton is the prefix of the name of one that is being made.
const newSkeleton = ".new-"

// Layer returns the lowest layer of a container's root file system. It has the places where
// the runtime mounts something and that the image may lack. It is made once for all containers
// that mount at the same places; otherwise each container's writable layer would get its own.
// What the image has lies above and wins. Since something is mounted at every one of these
// places, no container sees the difference.
func (s Skeletons) Layer(mounts []*runtimeapi.Mount) (string, error) {
	places := mountedFolders(mounts)
	dir := filepath.Join(string(s), skeletonName(places))
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if made, err := os.ReadDir(string(s)); len(places) > 0 && err == nil && len(made) >= mostSkeletons {
		return s.Layer(nil)
	}
	if err := os.MkdirAll(string(s), 0o711); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(string(s), newSkeleton)
	if err != nil {
		return "", err
	}
	if err := fillSkeleton(temp, places); err != nil {
		return "", errors.Join(err, os.RemoveAll(temp))
	}
	if err := os.Rename(temp, dir); err != nil {
		err = errors.Join(err, os.RemoveAll(temp))
		if _, serr := os.Stat(dir); serr != nil { // otherwise another container was faster
			return "", err
		}
	}
	return dir, nil
}

// mountedFolders returns the places in the container at which folders are mounted.
func mountedFolders(mounts []*runtimeapi.Mount) []string {
	var out []string
	for _, m := range mounts {
		if m.GetImageSubPath() != "" { // may be a file
			continue
		}
		if st, err := os.Stat(m.GetHostPath()); m.GetImage() == nil && (err != nil || !st.IsDir()) {
			continue
		}
		place := filepath.Clean("/" + m.GetContainerPath())
		top, _, _ := strings.Cut(place[1:], "/")
		if slices.Contains([]string{"", "dev", "proc", "sys"}, top) { // these are mounts themselves
			continue
		}
		out = append(out, place)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func skeletonName(places []string) string {
	sum := sha256.Sum256([]byte(strings.Join(places, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// fillSkeleton makes the places that every container has, and the given ones.
func fillSkeleton(root string, places []string) error {
	for _, dir := range append([]string{"dev", "etc", "proc", "sys"}, places...) {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"hostname", "hosts", "resolv.conf"} {
		f, err := os.OpenFile(filepath.Join(root, "etc", name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue // the pod mounts a folder there
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return err
		}
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o755) // regardless of the umask: all of the container's users must get through
	})
}

// Sweep removes skeletons that a crash left half made.
func (s Skeletons) Sweep() error {
	half, err := filepath.Glob(filepath.Join(string(s), newSkeleton+"*"))
	for _, dir := range half {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
