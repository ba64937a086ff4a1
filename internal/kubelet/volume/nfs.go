package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/disks"
	"wherry.dev/internal/mount"
)

// nfs is a directory of a server, for a pod by its own spec or by a PersistentVolume. Each pod mounts it for itself.
type nfs struct{ placed }

const nfsFolder = "kubernetes.io~nfs"

func nfsMounts() kind { return nfs{nfsFolder} }

func (nfs) source(s *spec) *v1.NFSVolumeSource {
	if s.pv != nil {
		return s.pv.Spec.NFS
	}
	return s.own.NFS
}

func (n nfs) is(s *spec) bool { return n.source(s) != nil }

func (nfs) ready(dir string) (bool, error) { return mount.Mounted(dir) }

func (nfs) tearDown(_ context.Context, dir string) error {
	if err := mount.UnmountStack(dir); err != nil {
		return err
	}
	return removePlace(dir)
}

// nfsProgram mounts NFS: it finds the server's ports and versions, which the kernel does not.
const nfsProgram = "mount.nfs"

func (n nfs) setUp(ctx context.Context, s *spec, dir string) (time.Time, error) {
	if s.block {
		return time.Time{}, errors.New("an NFS volume cannot have volumeMode Block")
	}
	if there, err := n.ready(dir); err != nil || there {
		return time.Time{}, err
	}
	args, err := nfsArguments(n.source(s), s, dir)
	if err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return time.Time{}, err
	}
	out, err := disks.Run(ctx, nfsProgram, args...)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, fmt.Errorf("this node cannot mount NFS: it has no %s (in Debian's package nfs-common, or nfs-utils elsewhere)", nfsProgram)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("%s %s: %w: %s", nfsProgram, args[0], err, bytes.TrimSpace(out))
	}
	return time.Time{}, nil
}

// nfsArguments returns those of the program: what, where, and how.
func nfsArguments(src *v1.NFSVolumeSource, s *spec, dir string) ([]string, error) {
	server := src.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]" // IPv6
	}
	if server == "" || strings.HasPrefix(server, "-") {
		return nil, fmt.Errorf("%q is not the name of an NFS server", src.Server)
	}
	var options []string
	if s.pv != nil {
		options = slices.Clone(s.pv.Spec.MountOptions)
	}
	if src.ReadOnly || s.readOnly {
		options = append(options, "ro")
	}
	args := []string{server + ":" + src.Path, dir}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	return args, nil
}
