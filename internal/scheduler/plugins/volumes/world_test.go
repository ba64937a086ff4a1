package volumes

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	schedcache "wherry.dev/internal/scheduler/cache"
	"wherry.dev/internal/scheduler/framework"
)

// world is a cluster as plugins see it. Its informers are filled by hand, and never run.
type world struct {
	fwk.Handle
	t        *testing.T
	factory  informers.SharedInformerFactory
	client   *fake.Clientset
	snapshot *schedcache.Snapshot
}

func newWorld(t *testing.T, objs ...any) *world {
	t.Helper()
	client := fake.NewClientset()
	w := &world{t: t, client: client, factory: informers.NewSharedInformerFactory(client, 0),
		snapshot: schedcache.NewSnapshot(nil)}
	for _, obj := range objs {
		w.set(obj)
	}
	return w
}

func (w *world) SharedInformerFactory() informers.SharedInformerFactory { return w.factory }
func (w *world) ClientSet() kubernetes.Interface                        { return w.client }
func (w *world) SnapshotSharedLister() fwk.SharedLister                 { return w.snapshot }
func (w *world) SharedCSIManager() fwk.CSIManager {
	return csiNodes{w.factory.Storage().V1().CSINodes().Lister()}
}

type csiNodes struct{ storagelisters.CSINodeLister }

func (c csiNodes) CSINodes() fwk.CSINodeLister { return c }
func (c csiNodes) List() ([]*storagev1.CSINode, error) {
	return c.CSINodeLister.List(labels.Everything())
}

func (w *world) store(obj any) cache.Indexer {
	core, storage := w.factory.Core().V1(), w.factory.Storage().V1()
	switch obj.(type) {
	case *v1.PersistentVolume:
		return core.PersistentVolumes().Informer().GetIndexer()
	case *v1.PersistentVolumeClaim:
		return core.PersistentVolumeClaims().Informer().GetIndexer()
	case *v1.Node:
		return core.Nodes().Informer().GetIndexer()
	case *storagev1.StorageClass:
		return storage.StorageClasses().Informer().GetIndexer()
	case *storagev1.CSINode:
		return storage.CSINodes().Informer().GetIndexer()
	case *storagev1.CSIDriver:
		return storage.CSIDrivers().Informer().GetIndexer()
	case *storagev1.CSIStorageCapacity:
		return storage.CSIStorageCapacities().Informer().GetIndexer()
	case *storagev1.VolumeAttachment:
		return storage.VolumeAttachments().Informer().GetIndexer()
	}
	w.t.Fatalf("no informer for %T", obj)
	return nil
}

func (w *world) set(obj any) {
	w.t.Helper()
	if err := w.store(obj).Add(obj); err != nil {
		w.t.Fatal(err)
	}
}

// snap puts nodes with their pods into the snapshot.
func (w *world) snap(nodes []*v1.Node, pods ...*v1.Pod) {
	w.t.Helper()
	c := schedcache.New(klog.Background())
	for _, n := range nodes {
		c.SetNode(n)
	}
	for _, p := range pods {
		if err := c.SetPod(p); err != nil {
			w.t.Fatal(err)
		}
	}
	c.Update(w.snapshot)
}

func (w *world) info(name string) fwk.NodeInfo {
	w.t.Helper()
	n, err := w.snapshot.Get(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) binding(args configv1.VolumeBindingArgs) *Binding {
	w.t.Helper()
	pl, err := BindingFactory()(w.t.Context(), &args, w)
	if err != nil {
		w.t.Fatal(err)
	}
	b, ok := pl.(*Binding)
	if !ok {
		w.t.Fatalf("got a %T", pl)
	}
	return b
}

// words returns "" for yes; "!" before reasons means that the end of other pods would not help.
func words(st *fwk.Status) string {
	switch {
	case st.IsSuccess():
		return ""
	case st.Code() == fwk.UnschedulableAndUnresolvable:
		return "!" + strings.Join(st.Reasons(), ", ")
	case st.IsRejected():
		return strings.Join(st.Reasons(), ", ")
	}
	return "error: " + st.Message()
}

// ask runs a plugin's PreFilter and Filter.
func ask(t *testing.T, pl fwk.PreFilterPlugin, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) string {
	t.Helper()
	if _, st := pl.PreFilter(t.Context(), state, pod, nil); st.IsSkip() {
		return ""
	} else if !st.IsSuccess() {
		return words(st)
	}
	f, ok := pl.(fwk.FilterPlugin)
	if !ok {
		t.Fatalf("%s filters nothing", pl.Name())
	}
	return words(f.Filter(t.Context(), state, pod, n))
}

func newState() fwk.CycleState { return framework.NewCycleState(nil) }

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"}
}

func node(name string, pairs ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: meta(name)}
	n.Labels = map[string]string{v1.LabelHostname: name}
	for i := 0; i < len(pairs); i += 2 {
		n.Labels[pairs[i]] = pairs[i+1]
	}
	return n
}

func pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: meta(name)}
	p.Namespace = "ns"
	for _, f := range change {
		f(p)
	}
	return p
}

func on(node string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.NodeName = node } }

func with(sources ...v1.VolumeSource) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, s := range sources {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: string(rune('a' + len(p.Spec.Volumes))), VolumeSource: s})
		}
	}
}

func using(claims ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, c := range claims {
			with(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c}})(p)
		}
	}
}

func generic(p *v1.Pod) { with(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}})(p) }

// claim is one of the class "local" for 1 GiB.
func claim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{ObjectMeta: meta(name)}
	c.Namespace = "ns"
	c.Spec.StorageClassName = new("local")
	c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	wants("1Gi")(c)
	for _, f := range change {
		f(c)
	}
	return c
}

func wants(size string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
}

func ofClass(name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func modes(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = m }
}

func has(pv string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName = pv
		c.Status.Phase = v1.ClaimBound
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
}

func selected(node string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, node)
	}
}

func ownedBy(pod string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(pod), Controller: new(true)}}
	}
}

// pv is a free one of the class "local", of 1 GiB.
func pv(name string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	p := &v1.PersistentVolume{ObjectMeta: meta(name)}
	p.Spec.StorageClassName = "local"
	p.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	p.Status.Phase = v1.VolumeAvailable
	sized("1Gi")(p)
	for _, f := range change {
		f(p)
	}
	return p
}

func sized(size string) func(*v1.PersistentVolume) {
	return func(p *v1.PersistentVolume) {
		p.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
}

// at lets nodes reach a volume that have one of the values of the label.
func at(key string, values ...string) func(*v1.PersistentVolume) {
	return func(p *v1.PersistentVolume) {
		if p.Spec.NodeAffinity == nil {
			p.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{}}
		}
		r := p.Spec.NodeAffinity.Required
		r.NodeSelectorTerms = append(r.NodeSelectorTerms, v1.NodeSelectorTerm{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: values}},
		})
	}
}

func atNode(name string) func(*v1.PersistentVolume) { return at(v1.LabelHostname, name) }

func kept(claim string, uid types.UID) func(*v1.PersistentVolume) {
	return func(p *v1.PersistentVolume) {
		p.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: claim, UID: uid}
	}
}

func zonedAt(key, value string) func(*v1.PersistentVolume) {
	return func(p *v1.PersistentVolume) { metav1.SetMetaDataLabel(&p.ObjectMeta, key, value) }
}

// csi makes a volume one of the driver "d".
func csi(handle string) func(*v1.PersistentVolume) {
	return func(p *v1.PersistentVolume) {
		p.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle}
	}
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode,
	change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: meta(name), Provisioner: provisioner, VolumeBindingMode: &mode}
	for _, f := range change {
		f(c)
	}
	return c
}

const later = storagev1.VolumeBindingWaitForFirstConsumer

var local = class("local", volume.NotSupportedProvisioner, later)

func zonesAllowed(values ...string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: v1.LabelTopologyZone, Values: values}}}}
	}
}

// room is what a driver has for a class in a zone.
func room(name, class, zone, capacity string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: meta(name), StorageClassName: class, Capacity: new(resource.MustParse(capacity)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelTopologyZone: zone}},
	}
}

// driver is the CSI driver "d".
func driver(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{ObjectMeta: meta("d")}
	if change != nil {
		change(&d.Spec)
	}
	return d
}

// csiNode is of the node n1, and has drivers with limits, below 0 for none.
func csiNode(limits map[string]int32) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: meta("n1")}
	for d, count := range limits {
		x := storagev1.CSINodeDriver{Name: d, NodeID: "n1"}
		if count >= 0 {
			x.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, x)
	}
	return n
}
