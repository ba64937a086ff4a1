package storage

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
)

// An etcd that stopped while it started was reported as "etcd stopped while starting: {}", even
// when its cause was known.
func TestEtcdThatStopsWhileStartingSaysWhy(t *testing.T) {
	cause := errors.New("input/output error")
	for name, end := range map[string]*fatality{"known": newFatality(t.Context()), "not known": newFatality(t.Context())} {
		cfg, err := etcdConfig(t.TempDir(), end)
		if err != nil {
			t.Fatal(err)
		}
		etcd, err := embed.StartEtcd(cfg)
		if err != nil {
			t.Fatal(err)
		}
		etcd.Server.HardStop()
		if name == "known" {
			end.fail(cause)
		}
		err = lead(t.Context(), etcd.Server, end)
		if errors.Is(err, cause) != (name == "known") || err == nil || strings.Contains(err.Error(), "{}") {
			t.Errorf("%s: %v", name, err)
		}
		etcd.Close()
	}
}
