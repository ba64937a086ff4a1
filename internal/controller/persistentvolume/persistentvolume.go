// Package persistentvolume binds PersistentVolumeClaims to PersistentVolumes, under the name
// persistentvolume-binder-controller.
//
// A binding is two references: the volume's claimRef, which is written first, and the claim's volumeName. A volume
// that has a claimRef with a UID is that claim's, and no other gets it; every write names the version that it changes,
// so of two claims that want a volume one gets it. The loop of claims chooses volumes and completes what was begun,
// here, by the scheduler or by a provisioner. That of volumes says what state they are in, and lets go of those whose
// claim is gone, or has another one. Either may stop after any write: what is there says how to go on.
//
//	claim:   Pending ──▶ Bound ──▶ Lost (its volume is gone, or another claim's; Bound again if that comes back)
//	volume:  Pending ──▶ Available ──▶ Bound ──▶ Released ──▶ (its provisioner deletes it)
//	                         ▲           │           └──────▶ Failed (nobody can delete or recycle it)
//	                         └───────────┘ given up: its claim has another one
//
// Volumes are made and deleted by external provisioners; this controller asks for that by annotations and by phases.
// What is to be done is for pure functions to say (decideClaim, decideVolume). Nothing is done again and again: what a
// claim waits for wakes it (wake.go).
package persistentvolume

import (
	"context"
	"errors"

	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
	"wherry.dev/internal/controller/written"
)

// Controller binds claims and volumes. Create one with New.
type Controller struct {
	client          clientset.Interface
	claims, volumes *controller.Loop
	claimLister     corelisters.PersistentVolumeClaimLister
	volumeLister    corelisters.PersistentVolumeLister
	classLister     storagelisters.StorageClassLister
	claimIndex      cache.Indexer
	volumeIndex     cache.Indexer
	pods            cache.Indexer
	events          record.EventRecorder

	// What was written to claims and volumes, by the key on whose behalf.
	wroteClaims, wroteVolumes *written.Log
	promises                  *promises
	said                      *said
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	claims, volumes := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().PersistentVolumes()
	classes, pods := f.Storage().V1().StorageClasses(), f.Core().V1().Pods().Informer()
	err := errors.Join(
		claims.Informer().AddIndexers(cache.Indexers{byWant: controller.IndexBy(wants)}),
		volumes.Informer().AddIndexers(cache.Indexers{byClaim: controller.IndexBy(offers)}), claimusers.AddIndex(pods),
	)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, claimLister: claims.Lister(), volumeLister: volumes.Lister(), classLister: classes.Lister(),
		claimIndex: claims.Informer().GetIndexer(), volumeIndex: volumes.Informer().GetIndexer(), pods: pods.GetIndexer(),
		promises: newPromises(), said: newSaid(),
	}
	c.wroteClaims, c.wroteVolumes = written.New(c.claimIndex), written.New(c.volumeIndex)
	c.claims = controller.NewLoop("claims", c.syncClaim)
	c.claims.WaitFor(c.wroteClaims, c.wroteVolumes)
	c.volumes = controller.NewLoop("volumes", c.syncVolume)
	c.volumes.WaitFor(c.wroteVolumes)
	register(c.volumeLister, c.claimLister)
	// Either loop reads what the other one watches.
	return c, errors.Join(
		c.claims.Watch(claims.Informer(), c.claimChanged), c.claims.Watch(volumes.Informer(), c.volumeChanged),
		c.claims.Watch(classes.Informer(), c.classChanged), c.claims.Watch(pods, c.podChanged),
		c.volumes.Watch(volumes.Informer(), c.volumes.AddObject), c.volumes.Watch(claims.Informer(), c.wakeVolumesOf),
		c.volumes.Watch(pods, c.podLetsGo),
	)
}

// Run binds until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "persistentvolume-controller")
	defer stop()
	c.events = events
	loops := []*controller.Loop{c.claims, c.volumes}
	return controller.Together(len(loops), func(i int) error { return loops[i].Run(ctx) })
}
