package daemon

import (
	"context"

	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"

	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/manager"
)

// service is something that runs as long as the process.
type service struct {
	name string
	run  func(context.Context) error
	// awaited, if not empty, says in words for what a start waits until ready is closed.
	awaited string
	ready   <-chan struct{}
}

// part is what works on the cluster's objects, by informers that all parts share.
type part struct {
	// of reports whether a role has it.
	of func(config.Role) bool
	// leads: of several servers, one at a time has it.
	leads bool
	// make builds it; the services start in the order of the parts, once all are built.
	make func(*Daemon, context.Context, informers.SharedInformerFactory) ([]service, error)
}

// parts has all of them. The controllers come after what they publish.
var parts = []part{
	{of: config.Role.HasServer, leads: true, make: (*Daemon).newScheduler},
	{of: everywhere, make: (*Daemon).newDNS},
	{of: config.Role.HasServer, leads: true, make: (*Daemon).newControllers},
	{of: joinedOnly, make: (*Daemon).newServers},
	{of: config.Role.HasServer, leads: true, make: (*Daemon).newLocalVolumes},
	{of: config.Role.HasNode, make: (*Daemon).newProxy},
	{of: config.Role.HasNode, make: (*Daemon).newPolicies},
	{of: config.Role.HasNode, make: (*Daemon).newMesh},
}

// everywhere is for what even a server without a node has something to publish of.
func everywhere(config.Role) bool { return true }

// joinedOnly is for what nodes need whose server is elsewhere.
func joinedOnly(r config.Role) bool { return !r.HasServer() }

// startParts starts the parts of this instance's role.
func (d *Daemon) startParts(ctx context.Context) error {
	what := "services and network"
	if d.cfg.Role.HasServer() {
		what = "the scheduler and the controllers"
	}
	d.progress("starting " + what)
	reader, err := d.reader()
	if err != nil {
		return err
	}
	f := manager.NewInformers(reader)
	all, err := d.makeParts(ctx, f, func(p part) bool { return !p.leads || !d.several })
	if err != nil {
		return err
	}
	if d.several && d.cfg.Role.HasServer() {
		all = append(all, service{name: "leader election", run: d.lead})
	}
	d.group.start(ctx, "informers", func(ctx context.Context) error {
		f.Start(ctx.Done())
		<-ctx.Done()
		f.Shutdown()
		return nil
	})
	for _, s := range all {
		d.group.start(ctx, s.name, s.run)
	}
	if d.joined != nil && d.joined.away {
		return nil // the kubelet has work to do meanwhile; what services and policies there were, the kernel knows
	}
	for _, s := range all {
		if s.awaited == "" {
			continue
		}
		if err := d.await(ctx, s.awaited, s.ready); err != nil {
			return err
		}
	}
	return nil
}

// reader returns the client that watches what the parts read.
func (d *Daemon) reader() (clientset.Interface, error) {
	user := controllerUser
	if !d.cfg.Role.HasServer() {
		user = nodeUser(d.cfg.NodeName)
	}
	client, _, err := d.as(user)
	return client, err
}
