package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/pflag"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/manager"
	"wherry.dev/internal/scheduler"
)

// Users of the API server inside this process. Each has the rights that RBAC gives it, and no more.
const (
	schedulerUser  = "system:kube-scheduler"
	controllerUser = "system:kube-controller-manager"
)

// newControllers makes the cluster's controllers.
func (d *Daemon) newControllers(ctx context.Context, f informers.SharedInformerFactory) ([]service, error) {
	reader, _, err := d.as(controllerUser)
	if err != nil {
		return nil, err
	}
	ca, err := d.api.CA().Cert()
	if err != nil {
		return nil, err
	}
	options, err := controllerOptions(d.cfg.ControllerArgs)
	if err != nil {
		return nil, err
	}
	options.CloudProvider = d.cfg.CloudProvider
	// Networks of others want ranges, too: flannel takes a node's from its Node.
	r := &options.Ranges
	r.Allocate, r.Cluster, r.Services = true, d.cfg.ClusterCIDR, d.cfg.ServiceCIDR
	r.Bits4, r.Bits6 = d.cfg.RangeBits()
	info, err := d.clusterInfo(ca)
	if err != nil {
		return nil, err
	}
	names, _ := d.servingNames()
	m, err := manager.New(ctx, manager.Config{
		Account: func(name string) (clientset.Interface, *rest.Config, error) {
			return d.as("system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		},
		Serves: d.api.Serves,
		Reader: reader, RootCA: ca, Signer: d.api.CA(), ApproveServing: true, ServerNames: names, Tokens: d.api.TokenIssuer(),
		Info: info, DNS: d.dns, NodePorts: d.ownPorts(), Options: &options,
	}, f)
	if err != nil {
		return nil, err
	}
	return []service{{name: "controllers", run: m.Run}}, nil
}

// ownControllerFlags are flags of the controllers that a whole node sets itself.
var ownControllerFlags = map[string]string{
	"cloud-provider":      "use --cloud-provider of the node",
	"allocate-node-cidrs": "nodes always get ranges", "cluster-cidr": "use --cluster-cidr of the node",
	"service-cluster-ip-range": "use --service-cidr of the node",
	"node-cidr-mask-size":      "use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 of the node",
	"node-cidr-mask-size-ipv4": "use that flag of the node", "node-cidr-mask-size-ipv6": "use that flag of the node",
}

// controllerOptions returns the settings of single controllers, of --controller-manager-arg.
func controllerOptions(args []string) (manager.Options, error) {
	o := manager.DefaultOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	var names []string
	fs.VisitAll(func(f *pflag.Flag) {
		if _, own := ownControllerFlags[f.Name]; !own {
			names = append(names, f.Name)
		}
	})
	err := setFlags(fs, "the controllers of a node, which are: "+strings.Join(names, ", "), args, ownControllerFlags)
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return o, fmt.Errorf("--controller-manager-arg: %w", err)
	}
	return o, nil
}

func (d *Daemon) newScheduler(ctx context.Context, f informers.SharedInformerFactory) ([]service, error) {
	client, _, err := d.as(schedulerUser)
	if err != nil {
		return nil, err
	}
	cfg := scheduler.DefaultConfig()
	if d.cfg.SchedulerConfig != "" {
		var warnings []string
		if cfg, warnings, err = scheduler.LoadConfig(d.cfg.SchedulerConfig); err != nil {
			return nil, err
		}
		for _, w := range warnings {
			klog.FromContext(ctx).Info("Warning: " + w)
		}
	}
	cfg.Informers, cfg.Serves = f, d.api.Serves
	cfg.PodGroups = d.api.Serves(schedulingv1beta1.SchemeGroupVersion.WithResource("podgroups"))
	cfg.Topology = cfg.PodGroups && d.api.Features().Topology
	s, err := scheduler.New(ctx, client, cfg)
	if err != nil {
		return nil, err
	}
	d.scheduler.Store(s)
	run := s.Run
	if d.several {
		run = func(ctx context.Context) error { return d.whileLeading(ctx, schedulerUser, schedulerLease, nil, s.Run) }
	}
	return []service{{name: "scheduler", run: run}}, nil
}

// scheduling serves the scheduler's reports on pods: those of another server, if that one leads.
func (d *Daemon) scheduling(w http.ResponseWriter, r *http.Request) {
	s := d.scheduler.Load()
	switch {
	case s != nil:
		s.ServeHTTP(w, r)
	case d.several && r.Header.Get(askedForHeader) == "" && d.forward(w, r):
	default:
		http.Error(w, report.NotScheduling, http.StatusNotFound)
	}
}
