package manager_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/manager"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// cluster is an API server with some controllers, each with the rights of its account.
type cluster struct {
	*apiserver.Server
	kubernetes.Interface // as an administrator
}

func start(t *testing.T, change func(*apiserver.Server, *manager.Config), names ...string) *cluster {
	t.Helper()
	return startWith(t, func(*apiserver.Config) {}, change, names...)
}

func startWith(t *testing.T, server func(*apiserver.Config), change func(*apiserver.Server, *manager.Config), names ...string) *cluster {
	t.Helper()
	cfg := apiserver.DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	server(&cfg)
	ctx := context.WithoutCancel(t.Context())
	s, err := apiserver.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s.Run)
	select {
	case <-s.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready")
	}
	options := manager.DefaultOptions()
	options.Controllers = names
	config := manager.Config{
		Account: func(name string) (kubernetes.Interface, *rest.Config, error) {
			cfg := s.ClientConfig("system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system")
			client, err := kubernetes.NewForConfig(cfg)
			return client, cfg, err
		},
		Reader:  client(t, s, "system:kube-controller-manager"),
		Options: &options,
	}
	if change != nil {
		change(s, &config)
	}
	f := manager.NewInformers(config.Reader)
	m, err := manager.New(ctx, config, f)
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) error {
		f.Start(ctx.Done())
		defer f.Shutdown()
		return m.Run(ctx)
	})
	return &cluster{s, client(t, s, "admin", "system:masters")}
}

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func client(t *testing.T, s *apiserver.Server, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.ClientConfig(user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watcher is the part of a typed client that await needs.
type watcher interface {
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// await returns once a watch has told of an object of the name, or of its end (nil), that is as wanted.
func await[T metav1.Object](t *testing.T, c watcher, name string, wanted func(T, bool) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last T
	for e := range w.ResultChan() {
		obj, ok := e.Object.(T)
		if !ok {
			t.Fatalf("watch: %v", e)
		}
		last = obj
		if wanted(obj, e.Type == watch.Deleted) {
			return
		}
	}
	t.Fatalf("%s did not become as wanted; last %+v", name, last)
}

// account makes a service account, without which no pod is admitted.
func (c *cluster) account(t *testing.T, name string) *v1.ServiceAccount {
	t.Helper()
	sa, err := c.CoreV1().ServiceAccounts("default").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return sa
}
