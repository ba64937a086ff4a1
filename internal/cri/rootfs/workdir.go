package rootfs

import (
	"fmt"

	"wherry.dev/internal/safepath"
)

// EnsureDir makes the working directory inside the container's root if the image does not have
// it. It follows symbolic links as the container would. The folder belongs to owner.
func EnsureDir(rootfs, dir string, owner int) error {
	root, err := safepath.Open(rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, err := root.MakeAllFor(owner, dir, 0o755)
	if err != nil {
		return fmt.Errorf("create working directory %s: %w", dir, err)
	}
	return f.Close()
}
