package image

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/disk"
)

// lookEvery is how many bytes are written, or read from a tar, between two looks at the disk. A
// tar can have a file in every 512 bytes.
const lookEvery = 128 << 10

// checkRoom returns an error if nothing more may be written to the disk. A layer of a few
// kilobytes can expand to more than any disk holds: if nothing stopped that early, running pods
// would be evicted.
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
		return fmt.Errorf("%w: %d MiB are free, and %d MiB must stay free for running pods", unix.ENOSPC, room.Free>>20, bytes>>20)
	}
	if room.Inodes > 0 && room.FreeInodes < inodes {
		return fmt.Errorf("%w: %d inodes are free, and %d must stay free for running pods", unix.ENOSPC, room.FreeInodes, inodes)
	}
	return nil
}

// roomReader fails once there is no room for what is written from it.
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
