package image

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/disk"
)

// lookEvery is how many bytes are written, or read of a tar, between two looks at the disk. A
// tar has a file in 512 bytes.
const lookEvery = 128 << 10

// checkRoom refuses to write more to the disk than may be. A layer of some kilobytes can
// become more than any disk has: without an end before that, the pods that run have to go.
func (s *Store) checkRoom() error {
	if s.cfg.KeepFree == nil {
		return nil
	}
	room, err := disk.Look(s.dir)
	if err != nil {
		return err
	}
	bytes, inodes := s.cfg.KeepFree(room)
	if room.Free < bytes {
		return fmt.Errorf("%w: %d MiB are free, and %d are kept for what runs", unix.ENOSPC, room.Free>>20, bytes>>20)
	}
	if room.Inodes > 0 && room.FreeInodes < inodes {
		return fmt.Errorf("%w: %d inodes are free, and %d are kept for what runs", unix.ENOSPC, room.FreeInodes, inodes)
	}
	return nil
}

// roomReader fails once there is no room for what its reader writes.
type roomReader struct {
	r     io.Reader
	check func() error
	left  int // bytes until the next look
}

func (r *roomReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		if err := r.check(); err != nil {
			return 0, err
		}
		r.left = lookEvery
	}
	n, err := r.r.Read(p[:min(len(p), lookEvery)])
	r.left -= n
	return n, err
}
