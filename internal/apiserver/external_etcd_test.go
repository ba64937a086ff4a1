package apiserver

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wherry.dev/internal/apiserver/storage"
)

// externalEtcd runs an etcd as somebody else would run it, with a small quota.
func externalEtcd(t *testing.T, quota int64) (address string) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.QuotaBackendBytes = t.TempDir(), "fatal", quota
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = local, local
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return "http://" + etcd.Clients[0].Addr().String()
}

// When an external etcd has reached its quota, the error says what to do, and deletions are the way
// out.
func TestQuotaOfAnExternalEtcdIsTold(t *testing.T) {
	address := externalEtcd(t, 16<<20)
	s, stop := run(t, t.TempDir(), func(c *Config) { c.EtcdServers = []string{address} })
	defer stop()
	c := admin(t, s)
	ctx := t.Context()
	made := 0
	var err error
	for ; err == nil && made < 100; made++ {
		err = makeMap(t, c, fmt.Sprint("m-", made), 500<<10)
	}
	if apierrors.ReasonForError(err) != storage.ReasonInsufficientStorage || !strings.Contains(err.Error(), "alarm disarm") {
		t.Fatalf("after %d objects: %v", made, err)
	}
	m, err := c.CoreV1().ConfigMaps("default").Get(ctx, "m-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data = nil
	_, err = c.CoreV1().ConfigMaps("default").Update(ctx, m, metav1.UpdateOptions{})
	if apierrors.ReasonForError(err) != storage.ReasonInsufficientStorage {
		t.Errorf("update: %v", err)
	}
	if err := c.CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if list, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) > 1 {
		t.Errorf("%d are left, %v", len(list.Items), err)
	}
	if err := restore(t, address); err != nil {
		t.Fatal(err)
	}
	if err := makeMap(t, c, "after", 500<<10); err != nil {
		t.Errorf("after what the refusal says: %v", err)
	}
}

// restore does what the refusal says.
func restore(t *testing.T, address string) error {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	now, err := client.Get(t.Context(), "/any")
	if err != nil {
		return err
	}
	if _, err := client.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return err
	}
	if _, err := client.Defragment(t.Context(), address); err != nil {
		return err
	}
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	return err
}
