package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"wherry.dev/internal/mount"
)

const defaultMode = int32(0o644)

// file is one entry of a volume whose content the kubelet writes.
type file struct {
	data []byte
	mode int32
	// uid owns the file, unless it is nil.
	uid *int64
}

// content collects the files of a volume.
type content struct {
	m     *Mounter
	ctx   context.Context
	pod   *v1.Pod
	files map[string]file
	// refresh is the earliest time at which a token or certificate has to be renewed.
	refresh time.Time
}

// rendered is a kind of volume whose content the kubelet writes. All except configMaps are kept in memory only.
type rendered struct {
	placed
	m      *Mounter
	onDisk bool
	mine   func(src *v1.VolumeSource) bool
	gather func(c *content, s *spec) error
}

func (r *rendered) is(s *spec) bool { return s.pv == nil && r.mine(s.own) }

func (r *rendered) setUp(ctx context.Context, s *spec, dir string) (time.Time, error) {
	c := &content{m: r.m, ctx: ctx, pod: s.pod, files: map[string]file{}}
	if err := r.gather(c, s); err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return time.Time{}, err
	}
	if r.onDisk {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return time.Time{}, err
		}
	} else if err := mount.Tmpfs(dir, 0o777, r.m.tmpfsSize(s.pod, new(resource.Quantity))); err != nil {
		return time.Time{}, err
	}
	if err := ownVolume(dir, 0o777, fsGroup(s.pod)); err != nil {
		return time.Time{}, err
	}
	return c.refresh, writeAtomic(dir, c.files, fsGroup(s.pod))
}

func missing(err error, optional *bool) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// keys adds the selected keys of an object, or all of them.
func (c *content) keys(data map[string][]byte, items []v1.KeyToPath, mode *int32, optional *bool, absent string) error {
	m := defaultMode
	if mode != nil {
		m = *mode
	}
	if len(items) == 0 {
		for k, d := range data {
			c.files[k] = file{data: d, mode: m}
		}
		return nil
	}
	for _, item := range items {
		d, ok := data[item.Key]
		if !ok {
			if optional != nil && *optional {
				continue
			}
			return errors.New(absent + item.Key)
		}
		if err := c.add(item.Path, d, m, item.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) add(path string, data []byte, mode int32, own *int32) error {
	if !filepath.IsLocal(path) {
		return fmt.Errorf("path %q must be relative and must not contain '..'", path)
	}
	if own != nil {
		mode = *own
	}
	c.files[filepath.Clean(path)] = file{data: data, mode: mode}
	return nil
}

// renewAt makes sure that the volume is written again at that time at the latest.
func (c *content) renewAt(at time.Time) {
	if !at.IsZero() && (c.refresh.IsZero() || at.Before(c.refresh)) {
		c.refresh = at
	}
}
