// Package localvolume makes volumes on the disks of nodes, for claims of storage classes whose provisioner is
// local.wherry.dev. It speaks the protocol of external provisioners: the scheduler chooses a node for a claim's first
// pod, the volume controller asks for a volume, and the provisioner has a directory made on that node's disk, and makes the
// PersistentVolume that names it. When the claim is gone it has the directory removed, and removes the PersistentVolume.
//
//	claim waits ──▶ directory made ──▶ volume written ──▶ bound, by the volume controller
//	claim grows ──▶ size written, into the volume and then into the claim
//	claim gone  ──▶ volume Released ──▶ directory removed ──▶ volume deleted, and let go of
//
// It may stop after any step. A directory that has no volume yet is empty: it is used when the claim is looked at again,
// or removed because the claim is gone. One with content is only ever removed together with its volume; without one it
// is somebody's data, which was kept on purpose. Which directory is a volume's follows from the volume's name: a path
// that somebody else has written into a volume is not followed.
//
// One provisioner works for all nodes: it runs with the controllers, reads from the informers of the process, and writes with
// rights of its own. What is done on a disk is behind Disk: that of this machine, or that of a node which has joined, whose
// kubelet is asked. Nodes need no rights for it. How much room the disks have is published as CSIStorageCapacity, so that
// the scheduler chooses a node that has room, and none that makes no volumes.
package localvolume

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/controller"
)

// Account is the service account in kube-system whose rights the client must have.
const Account = "local-volume-provisioner"

// Config says where volumes are made.
type Config struct {
	// Name of this process in events.
	Name string
	// Disk returns that of a node; nil if no volumes are made there.
	Disk func(*v1.Node) Disk
}

// Provisioner makes and removes the volumes of all nodes. Create one with New.
type Provisioner struct {
	Config
	client clientset.Interface
	events record.EventRecorder

	nodes, claims, volumes, room, growth *controller.Loop

	claimLister  corelisters.PersistentVolumeClaimLister
	volumeLister corelisters.PersistentVolumeLister
	nodeLister   corelisters.NodeLister
	classLister  storagelisters.StorageClassLister
	roomLister   storagelisters.CSIStorageCapacityLister

	mu sync.Mutex
	// begun are the directories whose volume may not have been written, by claim.
	begun map[string]begun
	// looked are the disks, by node, as they were some time ago.
	looked map[string]looked
	// gone is since when the node of a volume is missed.
	gone map[string]time.Time
}

// New returns the provisioner, with the informers of f. It writes by client.
func New(cfg Config, client clientset.Interface, f informers.SharedInformerFactory) (*Provisioner, error) {
	claims, volumes, nodes := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().PersistentVolumes(), f.Core().V1().Nodes()
	classes, room := f.Storage().V1().StorageClasses(), f.Storage().V1().CSIStorageCapacities()
	p := &Provisioner{
		Config: cfg, client: client, claimLister: claims.Lister(), volumeLister: volumes.Lister(), nodeLister: nodes.Lister(),
		classLister: classes.Lister(), roomLister: room.Lister(),
		begun: map[string]begun{}, looked: map[string]looked{}, gone: map[string]time.Time{},
	}
	p.nodes = controller.NewLoop("local-nodes", p.syncNode)
	p.claims = controller.NewLoop("local-claims", p.syncClaim)
	p.volumes = controller.NewLoop("local-volumes", p.syncVolume)
	p.room = controller.NewLoop("local-room", p.syncRoom)
	p.growth = controller.NewLoop("local-growth", p.syncGrowth)
	return p, errors.Join(
		p.nodes.Watch(nodes.Informer(), p.nodeChanged), p.nodes.Watch(claims.Informer(), nothing), p.nodes.Watch(volumes.Informer(), nothing),
		p.claims.Watch(claims.Informer(), p.claimChanged), p.claims.Watch(volumes.Informer(), nothing),
		p.claims.Watch(nodes.Informer(), nothing), p.claims.Watch(classes.Informer(), p.classChanged),
		p.volumes.Watch(volumes.Informer(), p.volumeChanged), p.volumes.Watch(nodes.Informer(), nothing),
		p.room.Watch(room.Informer(), p.roomChanged), p.room.Watch(nodes.Informer(), nothing), p.room.Watch(classes.Informer(), nothing),
		p.growth.Watch(claims.Informer(), p.wakeGrowth), p.growth.Watch(volumes.Informer(), p.wakeOwner), p.growth.Watch(nodes.Informer(), nothing),
	)
}

// nothing waits until an informer is in step, and is not woken by it.
func nothing(_, _ any) {}

// Run makes and removes volumes until ctx ends.
func (p *Provisioner) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, p.client, classes.LocalProvisioner+"_"+p.Name)
	defer stop()
	p.events = events
	loops := []*controller.Loop{p.nodes, p.claims, p.volumes, p.room, p.growth}
	return controller.Together(len(loops), func(i int) error { return loops[i].Run(ctx) })
}

// claimChanged wakes what makes the claim's volume, and what says how much room there is: somebody is about to ask.
func (p *Provisioner) claimChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if claim, ok := o.(*v1.PersistentVolumeClaim); ok && asks(claim) {
			p.claims.AddObject(old, obj)
			p.wakeRoom(className(claim))
			return
		}
	}
}

// classChanged wakes the claims of a class.
func (p *Provisioner) classChanged(old, obj any) {
	for _, o := range []any{obj, old} {
		m, ok := o.(metav1.Object)
		if !ok {
			continue
		}
		p.wakeRoom(m.GetName())
		claims, err := p.claimLister.List(labels.Everything())
		if err != nil {
			return // impossible: it is in memory
		}
		for _, c := range claims {
			if asks(c) && className(c) == m.GetName() {
				p.claims.AddObject(nil, c)
			}
		}
		return
	}
}
