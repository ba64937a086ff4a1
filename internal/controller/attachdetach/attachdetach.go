// Package attachdetach has volumes attached to the nodes whose pods need them, and detached when no pod does, under
// the name persistentvolume-attach-detach-controller: those of CSI drivers, and disks of iSCSI and Fibre Channel.
//
// It asks for that by VolumeAttachments, which a driver's external-attacher carries out, and says in a node's
// status.volumesAttached what the kubelet may mount. For a volume and a node, what there is says how to go on:
//
//	nothing ──▶ VolumeAttachment ──▶ attached ──▶ in volumesAttached     while a pod of the node needs it
//	   ▲                                                  │
//	   └── (the attacher) ◀── VolumeAttachment deleted ◀── not in volumesAttached, nor in volumesInUse
//
// That is an agreement of two that cannot both go ahead. The kubelet writes a volume into volumesInUse, and mounts it
// if it then finds it in volumesAttached. This controller removes it there, and has it detached if it then does not
// find it in volumesInUse. A volume in use is detached only from a node that is out of service, or that has not been ready
// for as long as nobody needed the volume there, and that for six minutes.
//
// A volume that one node may have at a time gets a VolumeAttachment for a second one only when that for the first is
// gone, which is when the driver has detached it. Upstream's controller gives the volume to the second one when the
// first one's detachment has failed; here it waits, because nobody can say what a failed detachment has left.
//
// Disks of iSCSI and Fibre Channel are attached by the node itself: of them there is no VolumeAttachment, and all that is
// done here is to say which node may have one. They may be described in a pod, too.
//
//	nothing ──▶ in volumesAttached, while a pod of the node needs it ──▶ nothing, unless it is in volumesInUse
//
// That a node has it in volumesInUse only means that it wants it. It has it while it is in volumesAttached: it is taken from
// there in one write with the check that it is not in use.
//
// The key is the volume, so that one decision is made at a time for each. What is to be done is for a pure function to
// say (decide). Nothing is compared from time to time: attachments are watched like everything else.
package attachdetach

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/keymutex"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
	"wherry.dev/internal/controller/written"
)

const (
	// Patience is how long a volume stays attached to a node that is not ready and said that it is in use (upstream's
	// ReconcilerMaxWaitForUnmountDuration).
	Patience = 6 * time.Minute
	// attacherTime is after how long an attacher that says nothing is complained about (upstream's csiTimeout).
	attacherTime = 2 * time.Minute
	// statusLocks is how many nodes' statuses may be written at once.
	statusLocks = 64
)

// Options are settings of the controller.
type Options struct {
	NoForceDetach bool // --disable-force-detach-on-timeout
}

// Controller attaches and detaches volumes. Create one with New.
type Controller struct {
	client      clientset.Interface
	options     Options
	loop        *controller.Loop
	claims      corelisters.PersistentVolumeClaimLister
	nodes       corelisters.NodeLister
	drivers     storagelisters.CSIDriverLister
	attachments storagelisters.VolumeAttachmentLister
	events      record.EventRecorder

	podIndex, volumeIndex, nodeIndex, attachmentIndex cache.Indexer
	volumes                                           corelisters.PersistentVolumeLister

	// What was written to attachments and nodes, by the volume on whose behalf.
	wroteAttachments, wroteNodes *written.Log
	memories                     *memories
	statuses                     keymutex.KeyMutex
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory, o Options) (*Controller, error) {
	pods, nodes := f.Core().V1().Pods().Informer(), f.Core().V1().Nodes()
	claims, volumes := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().PersistentVolumes()
	drivers, attachments := f.Storage().V1().CSIDrivers(), f.Storage().V1().VolumeAttachments()
	err := errors.Join(
		claimusers.AddIndex(pods),
		pods.AddIndexers(cache.Indexers{byNode: controller.IndexBy(nodeOfUser), byName: controller.IndexBy(ownOf)}),
		volumes.Informer().AddIndexers(cache.Indexers{byName: controller.IndexBy(namesOf)}),
		nodes.Informer().AddIndexers(cache.Indexers{byName: controller.IndexBy(mentioned)}),
		attachments.Informer().AddIndexers(cache.Indexers{
			byNode: controller.IndexBy(nodeOf), byVolume: controller.IndexBy(volumeOf),
		}),
	)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, options: o, claims: claims.Lister(), nodes: nodes.Lister(), drivers: drivers.Lister(),
		attachments: attachments.Lister(), volumes: volumes.Lister(),
		podIndex: pods.GetIndexer(), volumeIndex: volumes.Informer().GetIndexer(),
		nodeIndex: nodes.Informer().GetIndexer(), attachmentIndex: attachments.Informer().GetIndexer(),
		memories: newMemories(), statuses: keymutex.NewHashed(statusLocks),
	}
	c.wroteAttachments, c.wroteNodes = written.New(c.attachmentIndex), written.New(c.nodeIndex)
	c.loop = controller.NewLoop("attach_detach", c.sync)
	c.loop.WaitFor(c.wroteAttachments, c.wroteNodes)
	census.of.Store(c)
	return c, errors.Join(
		c.loop.Watch(pods, c.podChanged), c.loop.Watch(nodes.Informer(), c.nodeChanged),
		c.loop.Watch(claims.Informer(), c.claimChanged), c.loop.Watch(volumes.Informer(), c.volumeChanged),
		c.loop.Watch(drivers.Informer(), c.driverChanged), c.loop.Watch(attachments.Informer(), c.attachmentChanged),
	)
}

// Run attaches and detaches until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "attachdetach-controller")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}
