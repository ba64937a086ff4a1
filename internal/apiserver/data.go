package apiserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"wherry.dev/internal/apiserver/storage"
)

// DataIn returns the folder below a data dir that has the embedded etcd's data, once etcd has
// started.
func DataIn(dataDir string) string { return storage.MemberDir(etcdIn(dataDir)) }

// LostData returns a description if an earlier start has left keys but no data beside them: perhaps
// a disk is not mounted, or a folder was removed. It returns "" if all is well. It must be called
// before the data is opened, which would create it.
func (c *Config) LostData() string {
	pki := filepath.Join(c.DataDir, "pki")
	if len(c.EtcdServers) > 0 || storage.HasMembers(c.etcdDir()) || c.CertDir != "" && c.CertDir != pki {
		return ""
	}
	if _, err := os.Stat(filepath.Join(pki, "sa.key")); err != nil {
		return "" // a first start
	}
	if _, err := os.Stat(DataIn(c.DataDir)); err == nil {
		return ""
	}
	return fmt.Sprintf("the cluster's data in %s is missing, and an empty cluster starts in its place; "+
		"to get the old one back, stop this one, restore the folder from a backup, and start again", DataIn(c.DataDir))
}

// Snapshot writes a snapshot of the embedded etcd's data, with everything that has been acknowledged
// before.
func (s *Server) Snapshot(ctx context.Context, w io.Writer) error { return s.backend.Snapshot(ctx, w) }

// Compact drops all revisions of the data before the present one, and returns that.
func (s *Server) Compact(ctx context.Context) (revision int64, err error) {
	return s.backend.Compact(ctx)
}

// Defragment gives the room of what was compacted back to the disk.
func (s *Server) Defragment(ctx context.Context) ([]storage.Defragmented, error) {
	return s.backend.Defragment(ctx)
}

// RestoreSnapshot makes the embedded etcd's data below a data dir from a snapshot. No server may have
// them open. r.Dir need not be set.
func RestoreSnapshot(dataDir string, r storage.Restore) (storage.Restored, error) {
	r.Dir = etcdIn(dataDir)
	return storage.RestoreSnapshot(r)
}
