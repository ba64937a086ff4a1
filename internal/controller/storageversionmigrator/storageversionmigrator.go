// Package storageversionmigrator carries out storage version migrations (KEP-4192): it has every object of a
// resource written again, so that all are stored as new ones are, encrypted with the key and in the version
// of now.
//
// An object is rewritten by an apply that says nothing. It changes no object, and the API server stores it
// only if what is stored differs from what would be. The UID and the resource version of the object are in
// it, so whoever writes at the same time wins.
//
// There are no records of how far a migration got. status.resourceVersion is that of the resource when the
// migration began: an object that is newer has been written since, by us or by others. A migration that was
// interrupted lists the objects again, and goes on with those that are not.
package storageversionmigrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/written"
)

// migration is short for what this package is about.
type migration = storagemigrationv1.StorageVersionMigration

// patience is how long a migration waits for a resource that is defined and not served yet (upstream's value).
const patience = time.Minute

// Controller carries out migrations, one at a time of each resource. Create one with New.
type Controller struct {
	client      clientset.Interface
	metadata    metadata.Interface
	definitions definitions.CustomResourceDefinitionInterface
	migrations  listers.StorageVersionMigrationLister
	writes      *written.Log
	loop        *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, meta metadata.Interface, crds definitions.CustomResourceDefinitionsGetter,
	f informers.SharedInformerFactory,
) (*Controller, error) {
	migrations := f.Storagemigration().V1().StorageVersionMigrations()
	c := &Controller{
		client: client, metadata: meta, definitions: crds.CustomResourceDefinitions(),
		migrations: migrations.Lister(), writes: written.New(migrations.Informer().GetStore()),
	}
	c.loop = controller.NewLoop("StorageVersionMigrator", c.reconcile)
	c.loop.WaitFor(c.writes)
	return c, c.loop.Watch(migrations.Informer(), func(old, obj any) {
		for _, o := range []any{old, obj} {
			if m, ok := o.(*migration); ok {
				c.loop.Add(key(m))
			}
		}
	})
}

// Run carries out migrations until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// key is the resource of a migration: two migrations of one resource would be in each other's way.
func key(m *migration) string { return schema.GroupResource(m.Spec.Resource).String() }

func (c *Controller) reconcile(ctx context.Context, key string) error {
	all, err := c.migrations.List(labels.Everything())
	if err != nil {
		return err
	}
	m := next(all, key)
	if m == nil {
		return nil
	}
	err = c.migrate(ctx, m.DeepCopy())
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("storage version migration %s of %s: %w", m.Name, key, err)
	}
	return nil
}

// migrate carries out a migration:
//
//  1. it finds out how the resource is served;
//  2. it says that the migration runs, on a definition too, and notes the version at which it began;
//  3. it rewrites the objects that are not newer;
//  4. it says how that ended.
func (c *Controller) migrate(ctx context.Context, m *migration) error {
	what, err := c.find(ctx, m)
	if err == nil {
		m, err = c.begin(ctx, m, what)
	}
	if err == nil {
		err = c.rewrite(ctx, m, what)
	}
	if cause, ok := errors.AsType[failure](err); ok {
		klog.FromContext(ctx).Info("Storage version migration failed", "migration", m.Name, "resource", key(m), "err", cause)
		return c.end(ctx, m, cause.Error())
	}
	if err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Storage version migration succeeded", "migration", m.Name, "resource", key(m))
	return c.end(ctx, m, "")
}

// find returns how the resource of a migration is served.
func (c *Controller) find(ctx context.Context, m *migration) (target, error) {
	groups, lists, err := c.client.Discovery().ServerGroupsAndResources()
	failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partly {
		return target{}, err
	}
	what, err := find(groups, lists, m.Spec.Resource)
	if err == nil {
		return what, nil
	}
	for gv, unknown := range failed {
		if gv.Group == m.Spec.Resource.Group {
			return target{}, fmt.Errorf("discovery of %s: %w", gv, unknown)
		}
	}
	crd, derr := c.definition(ctx, m)
	if derr != nil {
		return target{}, derr
	}
	if crd != nil && time.Since(m.CreationTimestamp.Time) < patience {
		return target{}, fmt.Errorf("not yet: %w", err)
	}
	return target{}, failure{err}
}

// begin says that the migration runs, if that has not been said yet. What it returns is the migration as it
// is stored then, with the version at which it began.
func (c *Controller) begin(ctx context.Context, m *migration, what target) (*migration, error) {
	var err error
	if started(m) {
		return m, nil
	}
	set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, "MigrationRunning", "The migration is running")
	if m, err = c.write(ctx, m); err != nil {
		return m, err
	}
	// The version is read after the definition was: whatever is older was written as of that definition or
	// an earlier one. A definition that changes later shows that by its generation.
	if err = c.mark(ctx, m); err != nil {
		return m, err
	}
	list, err := c.metadata.Resource(what.resource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return m, refused("list "+key(m), err)
	}
	if list.ResourceVersion == "" {
		return m, failure{fmt.Errorf("a list of %s has no resource version", key(m))}
	}
	m.Status.ResourceVersion = list.ResourceVersion
	return c.write(ctx, m)
}

// end says how a migration ended: in vain if there is a message.
func (c *Controller) end(ctx context.Context, m *migration, message string) error {
	if err := c.unmark(ctx, m, message == ""); err != nil {
		return err
	}
	if message == "" {
		set(m, storagemigrationv1.MigrationSucceeded, metav1.ConditionTrue, "StorageVersionMigrationSucceeded", "")
	} else {
		set(m, storagemigrationv1.MigrationFailed, metav1.ConditionTrue, "StorageVersionMigrationFailed", message)
	}
	if is(m, storagemigrationv1.MigrationRunning) {
		set(m, storagemigrationv1.MigrationRunning, metav1.ConditionFalse, "MigrationCompleted", "Migration completed")
	}
	_, err := c.write(ctx, m)
	return err
}

func (c *Controller) write(ctx context.Context, m *migration) (*migration, error) {
	out, err := c.client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	if absent(err) {
		return m, errGone
	}
	if err != nil {
		return m, err
	}
	c.writes.Wrote(key(m), out)
	return out, nil
}
