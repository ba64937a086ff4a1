package daemon

import (
	"context"
	"fmt"

	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/namespace"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/podgc"
	"wherry.dev/internal/controller/rootca"
	"wherry.dev/internal/controller/serviceaccount"
	"wherry.dev/internal/scheduler"
)

// Users of the API server inside of this process. Each has the rights that RBAC
// gives it, and no more.
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
	client, _, err := as(d.api, controllerUser)
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	controllers, err := d.controllers(client, f)
	if err != nil {
		return err
	}
	d.group.start(ctx, "informers", func(ctx context.Context) error {
		f.Start(ctx.Done())
		<-ctx.Done()
		f.Shutdown()
		return nil
	})
	for name, c := range controllers {
		d.group.start(ctx, name, c.Run)
	}
	return nil
}

// controllers makes all controllers on common informers. Each writes under the
// service account that upstream's RBAC roles are bound to.
func (d *Daemon) controllers(reader clientset.Interface, f informers.SharedInformerFactory) (map[string]controller.Controller, error) {
	ca, err := d.api.CA().Cert()
	if err != nil {
		return nil, err
	}
	type build func(clientset.Interface, *rest.Config) (controller.Controller, error)
	out := map[string]controller.Controller{}
	for account, build := range map[string]build{
		"namespace-controller": func(c clientset.Interface, cfg *rest.Config) (controller.Controller, error) {
			meta, err := metadata.NewForConfig(cfg)
			if err != nil {
				return nil, err
			}
			return namespace.New(c, meta, f)
		},
		"service-account-controller": func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return serviceaccount.New(c, f)
		},
		"root-ca-cert-publisher": func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return rootca.New(c, reader, f, ca)
		},
		"pod-garbage-collector": func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return podgc.New(c, f)
		},
		"node-controller": func(c clientset.Interface, _ *rest.Config) (controller.Controller, error) {
			return nodelifecycle.New(c, f)
		},
	} {
		client, cfg, err := as(d.api, "system:serviceaccount:kube-system:"+account, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		if err != nil {
			return nil, err
		}
		if out[account], err = build(client, cfg); err != nil {
			return nil, fmt.Errorf("%s: %w", account, err)
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
