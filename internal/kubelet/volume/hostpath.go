package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
)

// hostPath shows a path of the host, for a pod by its own spec or by a PersistentVolume. Nothing is mounted.
type hostPath struct{}

func (hostPath) source(s *spec) *v1.HostPathVolumeSource {
	if s.pv != nil {
		return s.pv.Spec.HostPath
	}
	return s.own.HostPath
}

func (h hostPath) is(s *spec) bool                      { return h.source(s) != nil }
func (hostPath) folder() string                         { return "" }
func (h hostPath) path(s *spec, _ string) string        { return h.source(s).Path }
func (hostPath) ready(string) (bool, error)             { return false, nil }
func (hostPath) tearDown(context.Context, string) error { return nil }

func (h hostPath) setUp(_ context.Context, s *spec, _ string) (time.Time, error) {
	switch {
	case s.block:
		return time.Time{}, errors.New("a hostPath volume cannot have volumeMode Block")
	case s.pv != nil && len(s.pv.Spec.MountOptions) > 0:
		return time.Time{}, &failedAt{"MountVolume.MountOptionSupport check failed", errors.New("Mount options are not supported")}
	}
	return time.Time{}, checkHostPath(h.source(s))
}

// checkHostPath makes sure that a hostPath has the type that it claims, and creates it if the type
// says so.
func checkHostPath(src *v1.HostPathVolumeSource) error {
	kind := v1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	switch kind {
	case v1.HostPathUnset:
		return nil
	case v1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(src.Path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return expect(src.Path, "a directory", func(m fs.FileMode) bool { return m.IsDir() })
	case v1.HostPathDirectory:
		return expect(src.Path, "a directory", func(m fs.FileMode) bool { return m.IsDir() })
	case v1.HostPathFileOrCreate:
		if err := createFile(src.Path); err != nil {
			return err
		}
		return expect(src.Path, "a file", func(m fs.FileMode) bool { return m.IsRegular() })
	case v1.HostPathFile:
		return expect(src.Path, "a file", func(m fs.FileMode) bool { return m.IsRegular() })
	case v1.HostPathSocket:
		return expect(src.Path, "a socket file", func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 })
	case v1.HostPathCharDev:
		return expect(src.Path, "a character device", func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 })
	case v1.HostPathBlockDev:
		return expect(src.Path, "a block device", func(m fs.FileMode) bool {
			return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
		})
	default:
		return fmt.Errorf("%s is an invalid volume type", kind)
	}
}

// createFile creates an empty file; its directory must exist.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func expect(path, what string, ok func(fs.FileMode) bool) error {
	info, err := os.Stat(filepath.Clean(path))
	if err != nil || !ok(info.Mode()) {
		return fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
	}
	return nil
}
