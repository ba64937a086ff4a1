package storageversionmigrator_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/storageversionmigrator"
)

// cluster is an API server on an etcd that the test can look into.
type cluster struct {
	t       *testing.T
	address string // of etcd
	raw     *clientv3.Client
	data    string

	server *apiserver.Server
	stop   func()
	kubernetes.Interface
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = t.TempDir(), "fatal"
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = local, local
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	c := &cluster{t: t, address: "http://" + etcd.Clients[0].Addr().String(), data: t.TempDir(), stop: func() {}}
	if c.raw, err = clientv3.New(clientv3.Config{Endpoints: []string{c.address}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.raw.Close() })
	return c
}

// serve starts the API server, anew if there is one.
func (c *cluster) serve(change ...func(*apiserver.Config)) {
	c.t.Helper()
	c.stop()
	cfg := apiserver.DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = c.data, 0, net.IPv4(127, 0, 0, 1)
	cfg.EtcdServers = []string{c.address}
	cfg.AdvertiseAddress = net.IPv4(192, 0, 2, 1) // on a machine without a network it were one that others may not write
	for _, f := range change {
		f(&cfg)
	}
	ctx := context.WithoutCancel(c.t.Context())
	s, err := apiserver.New(ctx, cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.server, c.stop = s, c.background(s.Run)
	select {
	case <-s.Ready():
	case <-time.After(2 * time.Minute):
		c.t.Fatal("not ready")
	}
	c.Interface = kubernetes.NewForConfigOrDie(c.admin())
}

func (c *cluster) admin() *rest.Config { return c.server.ClientConfig("admin", "system:masters") }

// background runs f until the test ends, or stop is called.
func (c *cluster) background(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

// encrypt returns a change of the configuration: the resources are encrypted from now on.
func (c *cluster) encrypt(resources string) func(*apiserver.Config) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "encryption.yaml")
	text := `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ['` + resources + `']
  providers:
  - aescbc: {keys: [{name: k1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return func(cfg *apiserver.Config) { cfg.EncryptionConfig = path }
}

// roundTripper is what happens to the controller's requests.
type roundTripper func(next http.RoundTripper, r *http.Request) (*http.Response, error)

type wrapped struct {
	next http.RoundTripper
	do   roundTripper
}

func (w wrapped) RoundTrip(r *http.Request) (*http.Response, error) { return w.do(w.next, r) }

// migrate runs the controller with the rights of its account.
func (c *cluster) migrate(through roundTripper) (stop func()) {
	c.t.Helper()
	cfg := c.server.ClientConfig("system:serviceaccount:kube-system:storage-version-migrator-controller",
		"system:serviceaccounts", "system:serviceaccounts:kube-system")
	if through != nil {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return wrapped{next, through} })
	}
	reader := kubernetes.NewForConfigOrDie(c.server.ClientConfig("system:kube-controller-manager"))
	f := informers.NewSharedInformerFactoryWithOptions(reader, 0, informers.WithTransform(controller.DropManagedFields))
	m, err := storageversionmigrator.New(kubernetes.NewForConfigOrDie(cfg), metadata.NewForConfigOrDie(cfg), definitions.NewForConfigOrDie(cfg), f)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.background(func(ctx context.Context) error {
		f.Start(ctx.Done())
		defer f.Shutdown()
		return m.Run(ctx)
	})
}

type migration = storagemigrationv1.StorageVersionMigration

func (c *cluster) ask(name, group, resource string) *migration {
	c.t.Helper()
	m := &migration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Spec.Resource = metav1.GroupResource{Group: group, Resource: resource}
	out, err := c.StoragemigrationV1().StorageVersionMigrations().Create(c.t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) get(name string) *migration {
	c.t.Helper()
	m, err := c.StoragemigrationV1().StorageVersionMigrations().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// ended waits for the end of a migration, and checks that it is the one that is wanted.
func (c *cluster) ended(name string, want storagemigrationv1.MigrationConditionType) *migration {
	c.t.Helper()
	var m *migration
	eventually(c.t, "the end of migration "+name, func() error {
		m = c.get(name)
		for _, t := range []storagemigrationv1.MigrationConditionType{storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed} {
			if meta.IsStatusConditionTrue(m.Status.Conditions, string(t)) {
				return nil
			}
		}
		return fmt.Errorf("%+v", m.Status)
	})
	is := meta.FindStatusCondition(m.Status.Conditions, string(want))
	if is == nil || is.Status != metav1.ConditionTrue || is.Reason != "StorageVersionMigration"+string(want) {
		c.t.Fatalf("migration %s: %+v, want %s", name, m.Status, want)
	}
	if meta.IsStatusConditionTrue(m.Status.Conditions, string(storagemigrationv1.MigrationRunning)) {
		c.t.Errorf("migration %s runs on: %+v", name, m.Status)
	}
	return m
}

// stored returns what etcd has under a prefix.
func (c *cluster) stored(prefix string) map[string]string {
	c.t.Helper()
	got, err := c.raw.Get(c.t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range got.Kvs {
		out[string(kv.Key)] = string(kv.Value)
	}
	return out
}

// without counts the values under a prefix of keys, and those that do not begin as all should.
func (c *cluster) without(prefix, beginning string) (lacking, all int) {
	c.t.Helper()
	for _, value := range c.stored(prefix) {
		if all++; !strings.HasPrefix(value, beginning) {
			lacking++
		}
	}
	return lacking, all
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}
