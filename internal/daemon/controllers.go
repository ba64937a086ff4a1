package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/manager"
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
	cfg.WarningHandler = rest.NoWarnings{} // what is deprecated is ours to know
	client, err := clientset.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("client for %s: %w", user, err)
	}
	return client, cfg, nil
}

func (d *Daemon) startControllers(ctx context.Context) error {
	d.progress("starting the scheduler and the controllers")
	reader, _, err := as(d.api, controllerUser)
	if err != nil {
		return err
	}
	ca, err := d.api.CA().Cert()
	if err != nil {
		return err
	}
	f := manager.NewInformers(reader)
	if err := d.startScheduler(ctx, f); err != nil {
		return err
	}
	dns, err := d.startDNS(ctx, f)
	if err != nil {
		return err
	}
	services, err := d.newProxy(f)
	if err != nil {
		return err
	}
	policies, err := d.newPolicies(f)
	if err != nil {
		return err
	}
	volumes, err := d.newLocalVolumes(f)
	if err != nil {
		return err
	}
	options, err := controllerOptions(d.cfg.ControllerArgs)
	if err != nil {
		return err
	}
	m, err := manager.New(ctx, manager.Config{
		Account: func(name string) (clientset.Interface, *rest.Config, error) {
			return as(d.api, "system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		},
		Serves: d.api.Serves,
		Reader: reader, RootCA: ca, Signer: d.api.CA(), Tokens: d.api.TokenIssuer(), DNS: dns, NodePorts: d.ownPorts(),
		Options: &options,
	}, f)
	if err != nil {
		return err
	}
	d.group.start(ctx, "informers", func(ctx context.Context) error {
		f.Start(ctx.Done())
		<-ctx.Done()
		f.Shutdown()
		return nil
	})
	d.group.start(ctx, "controllers", m.Run)
	if volumes != nil {
		d.group.start(ctx, "local volumes", volumes.Run)
	}
	if services == nil {
		return nil
	}
	d.guard.enforcer.Store(policies)
	// Pods may need services, and must be isolated, from the start.
	d.group.start(ctx, "proxy", services.Run)
	d.group.start(ctx, "network policies", policies.Run)
	if err := d.await(ctx, "the service proxy", services.Ready()); err != nil {
		return err
	}
	return d.await(ctx, "the network policies", policies.Ready())
}

// controllerOptions returns the settings of single controllers, of --controller-manager-arg.
func controllerOptions(args []string) (manager.Options, error) {
	o := manager.DefaultOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	err := setFlags(fs, "the controllers of a node, which are: "+strings.Join(names, ", "), args, nil)
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return o, fmt.Errorf("--controller-manager-arg: %w", err)
	}
	return o, nil
}

func (d *Daemon) startScheduler(ctx context.Context, f informers.SharedInformerFactory) error {
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
	cfg.Informers, cfg.Serves = f, d.api.Serves
	s, err := scheduler.New(ctx, client, cfg)
	if err != nil {
		return err
	}
	d.scheduler.Store(s)
	d.group.start(ctx, "scheduler", s.Run)
	return nil
}

// scheduling serves the scheduler's reports on pods.
func (d *Daemon) scheduling(w http.ResponseWriter, r *http.Request) {
	s := d.scheduler.Load()
	if s == nil {
		http.Error(w, report.NotScheduling, http.StatusNotFound)
		return
	}
	s.ServeHTTP(w, r)
}
