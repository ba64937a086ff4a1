package apiserver

import (
	"fmt"
	"os"
	"path/filepath"

	"wherry.dev/internal/apiserver/storage"
)

// DataIn is where a data dir has the data of the embedded etcd, once it has started.
func DataIn(dataDir string) string { return storage.MemberDir((&Config{DataDir: dataDir}).etcdDir()) }

// LostData tells, before the first start with it, that an earlier start has left keys and
// that there are no data beside them: a disk that is not mounted, say, or a folder that
// was removed. It is empty where all is well.
func (c *Config) LostData() string {
	pki := filepath.Join(c.DataDir, "pki")
	if len(c.EtcdServers) > 0 || c.CertDir != "" && c.CertDir != pki {
		return ""
	}
	if _, err := os.Stat(filepath.Join(pki, "sa.key")); err != nil {
		return "" // a first start
	}
	if _, err := os.Stat(DataIn(c.DataDir)); err == nil {
		return ""
	}
	return fmt.Sprintf("the cluster's data in %s are gone, and an empty cluster starts in their place; "+
		"to have the old one, stop this one, put the folder back from a backup, and start again", DataIn(c.DataDir))
}
