package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/record"
)

// Remove removes a reference, or the whole image if it is the last one or an ID is given. An
// image that a container holds stays: the error is ErrInUse.
func (s *Store) Remove(_ context.Context, refOrID string) error {
	s.mu.Lock()
	id, ok := s.resolveLocked(refOrID)
	if !ok {
		s.mu.Unlock()
		return fmt.Errorf("image %s: %w", refOrID, ErrNotFound)
	}
	if ref, last := s.singleRefLocked(refOrID, id); !last {
		defer s.mu.Unlock()
		return s.dropRefsLocked(func(r, _ string) bool { return r == ref })
	}
	gone, err := s.removeImageLocked(id)
	s.mu.Unlock()
	return errors.Join(err, removeAll(gone))
}

// singleRefLocked returns the reference of the image that is meant, and whether the image has no
// other tag.
func (s *Store) singleRefLocked(refOrID, id string) (ref string, last bool) {
	ref, err := Normalize(refOrID)
	if err != nil || s.refs[ref] != id || strings.Contains(ref, "@") {
		return "", true
	}
	return ref, len(s.viewLocked(id).Tags) <= 1
}

// removeImageLocked removes the image and returns the folders that remain to be deleted. The
// names come last: writing them needs space, and before the rest is removed the disk may have
// none.
func (s *Store) removeImageLocked(id string) (gone []string, err error) {
	if owners := s.holds[id]; len(owners) > 0 {
		owner := slices.Min(slices.Collect(maps.Keys(owners)))
		return nil, fmt.Errorf("image %s: %w by container %s", id, ErrInUse, owner)
	}
	if err := record.Remove(s.imagePath(id)); err != nil {
		return nil, err
	}
	failpoint.At("remove-record")
	delete(s.images, id)
	if err := record.Remove(s.configPath(id)); err != nil {
		return nil, err
	}
	if gone, err = s.dropLayersLocked(); err != nil {
		return gone, err
	}
	return gone, s.dropRefsLocked(func(_, to string) bool { return to == id })
}

func (s *Store) dropRefsLocked(drop func(ref, id string) bool) error {
	next := maps.Clone(s.refs)
	maps.DeleteFunc(next, drop)
	return s.writeRefsLocked(next)
}

// writeRefsLocked replaces the names. A name of a missing image means nothing, so those names go
// from memory even if the disk is full.
func (s *Store) writeRefsLocked(next map[string]string) error {
	if maps.Equal(next, s.refs) {
		return nil
	}
	for _, p := range []string{s.refsPath(), s.refsCopy()} {
		if err := record.Write(p, recordVersion, next); err != nil {
			maps.DeleteFunc(s.refs, func(_, id string) bool { _, ok := s.images[id]; return !ok })
			return err
		}
	}
	s.refs = next
	return nil
}

// Prune removes every image that no container holds and that is not pinned, and
// returns them.
func (s *Store) Prune(ctx context.Context) ([]Image, error) {
	var gone []Image
	for _, img := range s.List() {
		if err := ctx.Err(); err != nil {
			return gone, err
		}
		if img.Pinned {
			continue
		}
		s.mu.Lock()
		dirs, err := s.removeImageLocked(img.ID)
		s.mu.Unlock()
		err = errors.Join(err, removeAll(dirs))
		if errors.Is(err, ErrInUse) {
			continue
		}
		if err != nil {
			return gone, err
		}
		gone = append(gone, img)
	}
	return gone, nil
}
