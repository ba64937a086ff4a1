package apiserver

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// spoil overwrites a value in an etcd.
func spoil(t *testing.T, address string, keys ...string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for _, key := range keys {
		if _, err := client.Put(t.Context(), key, "k8s\x00garbage"); err != nil {
			t.Fatal(err)
		}
	}
}

// An object that cannot be decoded is told by name, others are not touched by it, and it can be deleted
// by those who may (KEP-3926), while the server runs and after a restart.
func TestObjectThatCannotBeReadIsToldAndCanBeDeleted(t *testing.T) {
	address, dir := externalEtcd(t, 0), t.TempDir()
	external := func(c *Config) { c.EtcdServers = []string{address} }
	s, stop := run(t, dir, external)
	for _, name := range []string{"a", "b", "c"} {
		if err := makeMap(t, admin(t, s), name, 10); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("while running", func(t *testing.T) { corrupt(t, s, address, "b") })
	spoil(t, address, "/registry/configmaps/default/c")
	stop()
	s = startIn(t, dir, external)
	t.Run("at start", func(t *testing.T) { corrupt(t, s, address, "c") })
	eventually(t, func() error {
		list, err := admin(t, s).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(list.Items) != 1 || list.Items[0].Name != "a") {
			t.Errorf("left: %v", list.Items)
		}
		return err
	})
}

func corrupt(t *testing.T, s *Server, address, name string) {
	c, ctx := admin(t, s), t.Context()
	maps := c.CoreV1().ConfigMaps("default")
	key := "/configmaps/default/" + name
	spoil(t, address, "/registry"+key)
	wantTold := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := maps.Get(ctx, name, metav1.GetOptions{})
	wantTold("get", err)
	wantTold("delete without ado", maps.Delete(ctx, name, metav1.DeleteOptions{}))
	eventually(t, func() error { // the watch cache hears of it a moment later
		_, err := maps.List(ctx, metav1.ListOptions{Limit: 500}) // as kubectl does
		if err == nil {
			return errors.New("the list does not tell of it")
		}
		wantTold("list", err)
		return nil
	})
	a, err := maps.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get of another one: %v", err)
	}
	a.Data = map[string]string{"still": "works"}
	if _, err := maps.Update(ctx, a, metav1.UpdateOptions{}); err != nil {
		t.Errorf("update of another one: %v", err)
	}
	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	if err := maps.Delete(ctx, "a", unsafe); err == nil {
		t.Error("an object that can be read was deleted in the way for those that cannot")
	}
	raw := c.CoreV1().RESTClient().Delete().AbsPath("/api/v1/namespaces/default/configmaps/" + name) // as in docs/etcd.md
	if err := raw.Param("ignoreStoreReadErrorWithClusterBreakingPotential", "true").Do(ctx).Error(); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a new one of its name: %v", err)
	}
	if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// The indexes of authorization read all pods before the server is ready. One that cannot be read keeps it
// from that, and can be deleted meanwhile.
func TestPodThatCannotBeReadIsDeletedWhileTheServerStarts(t *testing.T) {
	address, dir := externalEtcd(t, 0), t.TempDir()
	s, stop := run(t, dir, func(c *Config) { c.EtcdServers = []string{address} })
	makeAccount(t, s)
	if _, err := admin(t, s).CoreV1().Pods("default").Create(t.Context(), testPod("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	spoil(t, address, "/registry/pods/default/p")
	stop()

	cfg := DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress, cfg.EtcdServers = dir, 0, net.IPv4(127, 0, 0, 1), []string{address}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	eventually(t, func() error { return admin(t, s).CoreV1().Pods("default").Delete(ctx, "p", unsafe) })
	select {
	case <-s.Ready():
	case <-time.After(3 * time.Minute): // caches and informers wait up to a minute between two tries, one after the other
		t.Error("not ready three minutes after the deletion")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Every kind that can be deleted can be deleted in this way, too, whichever server of the chain has it.
func TestObjectsOfAllKindsCanBeDeletedIfTheyCannotBeRead(t *testing.T) {
	s := start(t)
	cfg := s.ClientConfig("admin", "system:masters")
	if _, err := clientset.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgets(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widget := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	api := dynamic.NewForConfigOrDie(cfg)
	eventually(t, func() error {
		_, err := api.Resource(widget).List(t.Context(), metav1.ListOptions{})
		return err
	})
	lists, err := admin(t, s).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	tried := 0
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "delete") {
				continue
			}
			tried++
			of := dynamic.ResourceInterface(api.Resource(gv.WithResource(r.Name)))
			if r.Namespaced {
				of = api.Resource(gv.WithResource(r.Name)).Namespace("default")
			}
			if err := of.Delete(t.Context(), "nothing", unsafe); !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v", r.Name, err)
			}
		}
	}
	if tried < 50 {
		t.Errorf("only %d kinds", tried)
	}
}
