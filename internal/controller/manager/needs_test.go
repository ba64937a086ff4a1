package manager

import (
	"context"
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/controller/clusterdns"
	"wherry.dev/internal/pki"
	"wherry.dev/test/informers"
)

// all has a value for whatever a controller may want.
func all(client clientset.Interface, only string) Config {
	options := DefaultOptions()
	options.Controllers = []string{only}
	options.Ranges = NodeRanges{Allocate: true, Cluster: "10.244.0.0/16"}
	return Config{
		Options: &options, ApproveServing: true,
		Account: func(string) (clientset.Interface, *rest.Config, error) { return client, &rest.Config{}, nil },
		Reader:  client, RootCA: []byte("ca"), Signer: &pki.CA{}, Tokens: tokens{}, DNS: &clusterdns.Config{},
	}
}

type tokens struct{}

func (tokens) IssueLegacy(*v1.ServiceAccount, *v1.Secret) (string, error) {
	return "", errors.New("not in this test")
}

// asked returns the resources of the informers that a controller asks for.
func asked(t *testing.T, name string) []schema.GroupVersionResource {
	t.Helper()
	client := fake.NewClientset()
	f := NewInformers(client)
	if _, err := New(t.Context(), all(client, name), f); err != nil {
		t.Fatal(err)
	}
	return informers.Asked(t, f)
}

// A controller whose informers can never have seen everything would wait for ever: what it reads is among
// what it says that it needs.
func TestControllersNeedWhatTheyRead(t *testing.T) {
	for _, r := range table {
		if r.name == "garbage-collector-controller" {
			continue
		}
		declared, known := needs[r.name]
		if !known {
			t.Errorf("%s says nothing about what it needs", r.name)
		}
		for _, resource := range asked(t, r.name) {
			if !slices.Contains(declared, resource) && !slices.Contains(wants[r.name], resource) {
				t.Errorf("%s reads %v and does not say so", r.name, resource)
			}
		}
	}
	if len(needs) != len(table) {
		t.Errorf("%d controllers, %d that say what they need", len(table), len(needs))
	}
}

func TestControllersWithoutTheirAPIDoNotRun(t *testing.T) {
	client := fake.NewClientset()
	cfg := all(client, "")
	cfg.Options.Controllers = DefaultOptions().Controllers
	cfg.Serves = func(r schema.GroupVersionResource) bool { return r.Group != "batch" && r.Resource != "deployments" }
	f := NewInformers(client)
	m, err := New(t.Context(), cfg, f)
	if err != nil {
		t.Fatal(err)
	}
	var lost []string
	for _, r := range table {
		if !slices.ContainsFunc(m.running, func(n named) bool { return n.name == r.name }) {
			lost = append(lost, r.name)
		}
	}
	if want := []string{"deployment-controller", "job-controller", "cronjob-controller", "disruption-controller", "ttl-after-finished-controller"}; !slices.Equal(lost, want) {
		t.Errorf("without batch and deployments, there is no %q, want %q", lost, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	for typ := range f.WaitForCacheSync(ctx.Done()) {
		if name := typ.Elem().Name(); name == "Job" || name == "CronJob" || name == "Deployment" {
			t.Errorf("somebody watches %s", name)
		}
	}
	cancel()
	f.Shutdown()
}

// discovered answers like a server of which one group is down.
type discovered struct {
	discovery.DiscoveryInterface
	tries int
}

func (d *discovered) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	if d.tries++; d.tries == 1 {
		return nil, nil, errors.New("connection refused")
	}
	lists := []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/status"}}}}
	return nil, lists, &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "batch", Version: "v1"}: errors.New("503")}}
}

func TestWhatAnAPIServerServes(t *testing.T) {
	serves, err := Served(t.Context(), &discovered{})
	if err != nil {
		t.Fatal(err)
	}
	if !serves(core("pods")[0]) || serves(core("services")[0]) || serves(apps("deployments")[0]) || !serves(batch("jobs")[0]) {
		t.Error("pods are served, services and deployments are not, jobs may be")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Served(ctx, &discovered{}); err == nil {
		t.Error("told to stop, it goes on")
	}
}
