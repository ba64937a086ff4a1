package image

import (
	"context"
	"errors"
	"maps"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/record"
	"wherry.dev/internal/trace"
)

// commit makes an image durable and visible under the references once all its layers are
// unpacked. If it fails, nothing of the image stays.
func (s *Store) commit(ctx context.Context, r imageRecord, config []byte, refs []string) (Image, error) {
	if err := ctx.Err(); err != nil {
		return Image{}, context.Cause(ctx)
	}
	if !s.has(r.ID) {
		if err := s.sync(ctx); err != nil {
			return Image{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, had := s.images[r.ID]
	if !had {
		if err := s.writeImageLocked(r, config); err != nil {
			return Image{}, err
		}
	}
	failpoint.At("pull-recorded")
	next := maps.Clone(s.refs)
	for _, ref := range refs {
		next[ref] = r.ID
	}
	if err := s.writeRefsLocked(next); err != nil {
		if !had {
			delete(s.images, r.ID)
			err = errors.Join(err, record.Remove(s.imagePath(r.ID)), record.Remove(s.configPath(r.ID)))
		}
		return Image{}, err
	}
	failpoint.At("pull-named")
	return s.viewLocked(r.ID), nil
}

// tag adds a name to the image that exists under the digest reference. ok is false if there is
// none.
func (s *Store) tag(ref, byDigest string) (img Image, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.refs[byDigest]
	if !ok {
		return Image{}, false, nil
	}
	next := maps.Clone(s.refs)
	next[ref] = id
	if err := s.writeRefsLocked(next); err != nil {
		return Image{}, false, err
	}
	return s.viewLocked(id), true, nil
}

func (s *Store) has(id string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.images[id]
	return ok
}

// sync waits until all unpacked layers are on the disk, so that after a power cut every image
// that has a record is complete.
func (s *Store) sync(ctx context.Context) (err error) {
	_, span := trace.Start(ctx, "image: sync")
	defer func() { _ = trace.End(span, err) }()
	if err := syncFS(s.dir); err != nil {
		return err
	}
	failpoint.At("pull-synced")
	return nil
}

func (s *Store) writeImageLocked(r imageRecord, config []byte) error {
	err := record.WriteFile(s.configPath(r.ID), config, 0o600)
	failpoint.At("pull-config")
	if err == nil {
		err = record.Write(s.imagePath(r.ID), recordVersion, r)
	}
	if err != nil {
		return errors.Join(err, record.Remove(s.configPath(r.ID)))
	}
	s.images[r.ID] = r
	return nil
}
