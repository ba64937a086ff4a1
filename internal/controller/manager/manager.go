// Package manager runs the controllers: all of them on one set of informers, each with the rights of
// the service account that upstream's roles are bound to.
package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/certificates"
	"wherry.dev/internal/controller/clusterdns"
	"wherry.dev/internal/controller/clusterinfo"
	"wherry.dev/internal/controller/serviceaccounttoken"
)

// Config is what controllers need besides the informers.
type Config struct {
	// Account returns a client that acts as a service account in kube-system, and its configuration.
	Account func(name string) (clientset.Interface, *rest.Config, error)
	// Reader has the rights of the controller manager itself.
	Reader clientset.Interface

	// Serves reports whether the API server has a resource; nil says that it has all. A controller whose
	// resources are switched off does not run.
	Serves func(schema.GroupVersionResource) bool

	// RootCA is published in every namespace, in PEM; nil publishes none.
	RootCA []byte
	// Signer signs certificates; nil signs none.
	Signer certificates.Authority
	// ApproveServing: kubelets get serving certificates for the names and addresses of their nodes, and nobody gets a
	// client certificate for a node that is Ready. Upstream leaves both to somebody else.
	ApproveServing bool
	// ServerNames are names of API servers, for which no kubelet gets a serving certificate.
	ServerNames []string
	// Tokens signs the tokens in secrets; nil signs none.
	Tokens serviceaccounttoken.Signer
	// Options are settings of single controllers; nil means upstream's defaults.
	Options *Options
	// NodePorts are TCP ports that no load balancer gets; nil means those that nodes usually need.
	NodePorts []uint16
	// Info is what nodes that join are told of the cluster.
	Info clusterinfo.Config
	// DNS is the cluster's DNS that is published; nil if there is none of ours.
	DNS *clusterdns.Config
}

// Manager has the controllers. Create one with New.
type Manager struct {
	running []named
}

type named struct {
	name string
	controller.Controller
}

// Names returns the names of all controllers, sorted.
func Names() []string {
	out := make([]string, 0, len(table))
	for _, r := range table {
		out = append(out, r.name)
	}
	slices.Sort(out)
	return out
}

// NewInformers returns the informers that controllers share. Nobody who reads from them looks at
// managed fields, which are half of many an object.
func NewInformers(client clientset.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(controller.DropManagedFields))
}

// New builds the controllers on the informers of f. The caller starts those afterwards.
func New(ctx context.Context, cfg Config, f informers.SharedInformerFactory) (*Manager, error) {
	m := &Manager{}
	enabled, err := Parse(cfg.options().Controllers)
	if err != nil {
		return nil, err
	}
	for _, r := range table {
		if !enabled(r.name) {
			continue
		}
		if resource, lost := cfg.missing(r.name); lost {
			klog.FromContext(ctx).V(verbosityOf(resource)).Info("Controller does not run: the API server does not serve what it needs", "controller", r.name, "resource", resource.String())
			continue
		}
		p := &parts{Config: cfg, client: cfg.Reader, informers: f}
		if r.account != "" {
			var err error
			if p.client, p.rest, err = cfg.Account(r.account); err != nil {
				return nil, err
			}
		}
		c, err := r.build(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		if c != nil {
			m.running = append(m.running, named{r.name, c})
		}
	}
	return m, nil
}

// verbosityOf returns how much has to be told for a missing resource to be worth a word: beta versions are
// off by default.
func verbosityOf(r schema.GroupVersionResource) int {
	if strings.Contains(r.Version, "beta") {
		return 2
	}
	return 0
}

// Run runs the controllers until ctx ends, or one fails. Each waits for the informers that it reads.
func (m *Manager) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range m.running {
		g.Go(func() error {
			if err := c.Run(gctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Parse reads the value of --controllers: names of those to run, -NAME for those to leave out, * for
// all that are not named. It returns an error that names what is unknown.
func Parse(list []string) (func(name string) bool, error) {
	known := Names()
	for _, item := range list {
		if name := strings.TrimPrefix(item, "-"); name != "*" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("--controllers: %q is not in the list of known controllers: %s", name, strings.Join(known, ", "))
		}
	}
	return func(name string) bool {
		switch {
		case slices.Contains(list, "-"+name):
			return false
		case slices.Contains(list, name):
			return true
		}
		return slices.Contains(list, "*")
	}, nil
}
