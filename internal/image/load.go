package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"k8s.io/klog/v2"

	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// load reads the store and sweeps what a crash left. It drops what cannot be read and logs a
// line, because one bad record must not take the other images away; pulling or importing the
// image again repairs it.
func (s *Store) load() error {
	if err := emptyDir(filepath.Join(s.dir, "ingest")); err != nil {
		return err
	}
	for _, d := range []string{s.dir, filepath.Join(s.dir, "images")} {
		if err := record.Sweep(d); err != nil {
			return err
		}
	}
	if err := s.loadImages(); err != nil {
		return err
	}
	if err := s.loadLayers(); err != nil {
		return err
	}
	if err := s.dropIncomplete(); err != nil {
		return err
	}
	if err := s.loadRefs(); err != nil {
		return err
	}
	return s.sweepLayers()
}

func (s *Store) loadImages() error {
	paths, err := filepath.Glob(filepath.Join(s.dir, "images", "*.json"))
	if err != nil {
		return err
	}
	for _, p := range paths {
		var r imageRecord
		_, err := record.Read(p, &r)
		if bad, ok := errors.AsType[*record.CorruptError](err); ok {
			err = giveUp(bad, p)
		} else if err == nil && (s.imagePath(r.ID) != p || !isSHA256(r.ID) || !allSHA256(r.Chain)) {
			err = giveUp(&record.CorruptError{Path: p, Err: fmt.Errorf("it describes image %q with the layers %q", r.ID, r.Chain)}, p)
		} else if err == nil {
			s.images[r.ID] = r
		}
		if err != nil {
			return err
		}
	}
	return s.sweepConfigs()
}

func allSHA256(chain []string) bool {
	return !slices.ContainsFunc(chain, func(c string) bool { return !isSHA256(c) })
}

// giveUp removes a record that cannot be read.
func giveUp(why error, path string) error {
	klog.Background().Error(why, "An image is lost; pull or import it again")
	return record.Remove(path)
}

// sweepConfigs removes the configs of images that have no record.
func (s *Store) sweepConfigs() error {
	paths, err := filepath.Glob(filepath.Join(s.dir, "images", "*.config"))
	if err != nil {
		return err
	}
	for _, p := range paths {
		if _, ok := s.images["sha256:"+strings.TrimSuffix(filepath.Base(p), ".config")]; !ok {
			if err := record.Remove(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadLayers reads the layers. Only a complete layer is ever renamed into place, so one whose
// record cannot be read is complete, too, if an image still names it.
func (s *Store) loadLayers() error {
	named := map[string]string{}
	for _, r := range s.images {
		for _, c := range r.Chain {
			named[layerName(c)] = c
		}
	}
	mounted, err := mountedLayers()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "layers"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.loadLayer(e.Name(), named[e.Name()], mounted); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) loadLayer(name, chainID string, mounted func(dir string) bool) error {
	dir := filepath.Join(s.dir, "layers", name)
	var m layerMeta
	_, err := record.Read(filepath.Join(dir, "meta.json"), &m)
	if err == nil && (!isSHA256(m.ChainID) || layerName(m.ChainID) != name) {
		err = fmt.Errorf("layer %s is recorded as %q", name, m.ChainID)
	}
	inUse := chainID == "" && mounted(dir)
	switch {
	case err == nil && inUse:
		s.reserved[m.ChainID]++ // a container uses it, whatever became of the image's record
	case err == nil:
	case chainID != "":
		klog.Background().Error(err, "Recreating an image layer's record; the image can run, but cannot be exported", "layer", chainID)
		m = layerMeta{ChainID: chainID}
		if m.Bytes, m.Inodes, err = diskUsage(filepath.Join(dir, "fs")); err != nil {
			return nil //nolint:nilerr // there is no layer: the next step finds the image incomplete
		}
		if err := record.Write(filepath.Join(dir, "meta.json"), recordVersion, m); err != nil {
			klog.Background().Error(err, "Cannot save an image layer's record; the next start recreates it", "layer", chainID)
		}
	case inUse:
		return nil
	default:
		return safepath.RemoveAll(dir)
	}
	s.layers[m.ChainID] = m
	return nil
}

// mountedLayers returns a function that reports whether a layer is part of a container's mount:
// of an overlay or, with translated owners, bound on its own.
func mountedLayers() (func(dir string) bool, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return func(dir string) bool {
		tree := filepath.Join(dir, "fs")
		inside := filepath.Join("/layers", filepath.Base(dir), "fs") // the store may be a mount of its own
		return slices.ContainsFunc(infos, func(i *mountinfo.Info) bool {
			return i.FSType == "overlay" && strings.Contains(i.VFSOptions, tree) || strings.HasSuffix(i.Root, inside)
		})
	}, nil
}

// dropIncomplete drops the images that lack a layer.
func (s *Store) dropIncomplete() error {
	for id, r := range s.images {
		i := slices.IndexFunc(r.Chain, func(c string) bool { _, ok := s.layers[c]; return !ok })
		if i < 0 {
			continue
		}
		delete(s.images, id)
		if err := giveUp(fmt.Errorf("layer %s of image %s is missing", r.Chain[i], id), s.imagePath(id)); err != nil {
			return err
		}
	}
	return nil
}

// loadRefs reads the names, or the backup copy if they cannot be read.
func (s *Store) loadRefs() error {
	damaged, found := false, false
	for _, p := range []string{s.refsPath(), s.refsCopy()} {
		var refs map[string]string
		_, err := record.Read(p, &refs)
		if _, ok := errors.AsType[*record.CorruptError](err); ok {
			klog.Background().Error(err, "A record of the image names is damaged, ignoring it", "copy", s.refsCopy())
			damaged = true
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if refs != nil {
			s.refs, found = refs, true
			break
		}
	}
	maps.DeleteFunc(s.refs, func(_, id string) bool { _, ok := s.images[id]; return !ok })
	if !damaged {
		return nil
	}
	if !found && len(s.images) > 0 {
		klog.Background().Error(nil, "The names of all images are lost, with their copy; an image has only its ID until it is pulled or imported again", "images", len(s.images))
	}
	for _, p := range []string{s.refsPath(), s.refsCopy()} {
		if err := record.Write(p, recordVersion, s.refs); err != nil {
			klog.Background().Error(err, "Cannot save the image names; the next start reads the copy again")
		}
	}
	return nil
}

func (s *Store) refsPath() string { return filepath.Join(s.dir, "refs.json") }
func (s *Store) refsCopy() string { return filepath.Join(s.dir, "refs.copy.json") }

func (s *Store) imagePath(id string) string {
	return filepath.Join(s.dir, "images", strings.TrimPrefix(id, "sha256:")+".json")
}

// configPath returns the path of the image's original config, for Export.
func (s *Store) configPath(id string) string {
	return filepath.Join(s.dir, "images", strings.TrimPrefix(id, "sha256:")+".config")
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := safepath.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
