package daemon

import (
	"context"
	"fmt"

	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/manager"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/certificates"
	"wherry.dev/internal/controller/deployment"
	"wherry.dev/internal/controller/endpoints"
	"wherry.dev/internal/controller/endpointslice"
	"wherry.dev/internal/controller/endpointslicemirroring"
	"wherry.dev/internal/controller/garbagecollector"
	"wherry.dev/internal/controller/loadbalancer"
	"wherry.dev/internal/controller/namespace"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/podgc"
	"wherry.dev/internal/controller/replicaset"
	"wherry.dev/internal/controller/rootca"
	"wherry.dev/internal/controller/serviceaccount"
	"wherry.dev/internal/controller/tainteviction"
	"wherry.dev/internal/scheduler"
)

// Users of the API server inside this process. Each has the rights that RBAC gives it, and no more.
const (
	schedulerUser  = "system:kube-scheduler"
	controllerUser = "system:kube-controller-manager"
)

// as returns a client that acts as the user.
func as(api *apiserver.Server, user string, groups ...string) (clientset.Interface, *rest.Config, error) {
	cfg := api.ClientConfig(user, groups...)
	client, err := clientset.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("client for %s: %w", user, err)
	}
	return client, cfg, nil
}

func (d *Daemon) startControllers(ctx context.Context) error {
	d.progress("starting the scheduler and the controllers")
	if err := d.startScheduler(ctx); err != nil {
		return err
	}
	reader, _, err := as(d.api, controllerUser)
	if err != nil {
		return err
	}
	ca, err := d.api.CA().Cert()
	if err != nil {
		return err
	}
	f := manager.NewInformers(reader)
	dns, err := d.startDNS(ctx, f)
	if err != nil {
		return err
	}
	services, err := d.newProxy(f)
	if err != nil {
		return err
	}
	m, err := manager.New(manager.Config{
		Account: func(name string) (clientset.Interface, *rest.Config, error) {
			return as(d.api, "system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		},
		Reader: reader, RootCA: ca, Signer: d.api.CA(), DNS: dns,
	}, f)
	if err != nil {
		return err
	}
	d.group.start(ctx, "controllers", m.Run)
	if services == nil {
		return nil
	}
	d.group.start(ctx, "proxy", services.Run)
	return d.await(ctx, "the service proxy", services.Ready()) // pods may need services from the start
}

// builder makes one controller, which writes as a service account in kube-system.
type builder struct {
	name, account string
	build         func(clientset.Interface, *rest.Config) (controller.Controller, error)
}

func (d *Daemon) builders(reader clientset.Interface, f informers.SharedInformerFactory, ca []byte) []builder {
	return []builder{
		{"namespace", "namespace-controller", func(c clientset.Interface, cfg *rest.Config) (controller.Controller, error) {
			meta, err := metadata.NewForConfig(cfg)
			if err != nil {
				return nil, err
			}
			return namespace.New(c, meta, f)
		}},
		{"garbagecollector", "generic-garbage-collector", func(c clientset.Interface, cfg *rest.Config) (controller.Controller, error) {
			meta, err := metadata.NewForConfig(cfg)
			if err != nil {
				return nil, err
			}
			return garbagecollector.New(c, meta), nil
		}},
		{"serviceaccount", "service-account-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return serviceaccount.New(c, f)
		}},
		{"rootca", "root-ca-cert-publisher", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return rootca.New(c, reader, f, ca)
		}},
		{"certificates", "certificate-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return certificates.New(c, f, d.api.CA())
		}},
		{"podcertificates", "podcertificaterequestcleaner", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return certificates.NewPodRequestCleaner(c, f)
		}},
		{"podgc", "pod-garbage-collector", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return podgc.New(c, f)
		}},
		{"nodelifecycle", "node-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return nodelifecycle.New(c, f)
		}},
		{"tainteviction", "node-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return tainteviction.New(c, f)
		}},
		{"replicaset", "replicaset-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return replicaset.New(c, f)
		}},
		{"replicationcontroller", "replication-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return replicaset.NewForReplicationControllers(c, f)
		}},
		{"deployment", "deployment-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return deployment.New(c, f)
		}},
		{"endpointslice", "endpointslice-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return endpointslice.New(c, f)
		}},
		{"endpoints", "endpoint-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return endpoints.New(c, f)
		}},
		{"endpointslicemirroring", "endpointslicemirroring-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return endpointslicemirroring.New(c, f)
		}},
		{"loadbalancer", "service-controller", func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return loadbalancer.New(c, f)
		}},
	}
}

// controllers makes all controllers on shared informers. Each writes under the service account that
// upstream's RBAC roles are bound to.
func (d *Daemon) controllers(reader clientset.Interface, f informers.SharedInformerFactory) (map[string]controller.Controller, error) {
	ca, err := d.api.CA().Cert()
	if err != nil {
		return nil, err
	}
	out := map[string]controller.Controller{}
	for _, b := range d.builders(reader, f, ca) {
		client, cfg, err := as(d.api, "system:serviceaccount:kube-system:"+b.account, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		if err != nil {
			return nil, err
		}
		if out[b.name], err = b.build(client, cfg); err != nil {
			return nil, fmt.Errorf("controller %s: %w", b.name, err)
		}
	}
	return out, nil
}

func (d *Daemon) startScheduler(ctx context.Context) error {
	client, _, err := as(d.api, schedulerUser)
	if err != nil {
		return err
	}
	cfg := scheduler.DefaultConfig()
	if d.cfg.SchedulerConfig != "" {
		var warnings []string
		if cfg, warnings, err = scheduler.LoadConfig(d.cfg.SchedulerConfig); err != nil {
			return err
		}
		for _, w := range warnings {
			klog.FromContext(ctx).Info("Warning: " + w)
		}
	}
	s, err := scheduler.New(ctx, client, cfg)
	if err != nil {
		return err
	}
	d.group.start(ctx, "scheduler", s.Run)
	return nil
}
