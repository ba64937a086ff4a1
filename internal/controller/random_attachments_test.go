package controller_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/attachdetach"
)

// fleet is a life of nodes, with pods that come and go, kubelets that mount, an attacher, and a mortal controller. What
// is mounted and attached in truth stands here, not in the API.
type fleet struct {
	*mortal
	made int // how many pods there have been

	// Guarded by the API's lock.
	mounted  map[string]map[v1.UniqueVolumeName]bool // by node
	attached map[v1.UniqueVolumeName]map[string]bool // by volume, then by node
	allowed  map[string]bool                         // attachments, by UID, that may be detached although they are mounted
	idle     map[string]time.Time                    // since when no pod of a node needs a volume; by both
}

// disk is a volume of the fleet.
type disk struct {
	name      v1.UniqueVolumeName
	modes     []v1.PersistentVolumeAccessMode
	source    v1.PersistentVolumeSource
	exclusive bool
}

func csiDisk(driver, handle string, exclusive bool, modes ...v1.PersistentVolumeAccessMode) disk {
	source := v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	return disk{attachments.VolumeName(driver, handle), modes, source, exclusive}
}

const (
	blockDriver = "block.example.com"
	fileDriver  = "file.example.com" // has a CSIDriver, which says whether it attaches
)

var disks = []disk{
	csiDisk(blockDriver, "h0", true, v1.ReadWriteOnce),
	csiDisk(blockDriver, "h1", true, v1.ReadWriteOncePod),
	csiDisk(blockDriver, "h2", false, v1.ReadWriteOnce, v1.ReadWriteMany),
	csiDisk(fileDriver, "h3", true, v1.ReadWriteOnce),
	{
		attachments.VolumeName("ebs.csi.aws.com", "vol-4"), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-4"}}, true,
	},
	{
		attachments.ISCSIName("t", "iqn.2001-04.com.example:d", 5), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "t", IQN: "iqn.2001-04.com.example:d", Lun: 5}}, true,
	},
}

// direct reports whether nodes attach a volume themselves: there is no attachment of it.
func direct(name v1.UniqueVolumeName) bool { return attachments.KindByNode(name) != "" }

var nodeNames = []string{"n0", "n1", "n2"}

// addDisk adds a volume, and the claim that has it.
func (s *fleet) addDisk(i int) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("c", i)}}
	claim.Spec.VolumeName, claim.Status.Phase = fmt.Sprint("v", i), v1.ClaimBound
	s.add("persistentvolumeclaims", claim)
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	pv.Spec.AccessModes, pv.Spec.PersistentVolumeSource = disks[i].modes, disks[i].source
	s.locked(func() {
		c, err := s.get("persistentvolumeclaims", "a/"+claim.Name)
		if err != nil {
			panic(err)
		}
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "a", Name: claim.Name, UID: c.GetUID()}
	})
	s.add("persistentvolumes", pv)
}

func (s *fleet) addNode(name string) {
	s.add("nodes", &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{attachments.ManagedAnnotation: "true"}},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	})
}

func (s *fleet) addPod() {
	if len(s.all("pods")) >= 6 {
		return
	}
	s.made++
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("p", s.made)}, Spec: v1.PodSpec{NodeName: pick(s, nodeNames...)}}
	for range 1 + s.rand.IntN(2) {
		i := s.rand.IntN(len(disks))
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: fmt.Sprint("d", i), VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", i)}}})
	}
	s.note("pod %s on %s uses %v", p.Name, p.Spec.NodeName, disksOf(p))
	s.add("pods", p)
}

// disksOf returns the numbers of the disks that a pod uses.
func disksOf(p *v1.Pod) (out []int) {
	for _, v := range p.Spec.Volumes {
		var i int
		if _, err := fmt.Sscanf(v.PersistentVolumeClaim.ClaimName, "c%d", &i); err != nil {
			panic(err)
		}
		if !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	return out
}

func ends(p *v1.Pod) bool { return p.DeletionTimestamp != nil }

// stopped reports whether the kubelet has said that nothing of a pod runs any more.
func stopped(p *v1.Pod) bool {
	return ends(p) && !slices.ContainsFunc(p.Status.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.State.Running != nil })
}

func nodeReady(n *v1.Node) bool { return n.Status.Conditions[0].Status == v1.ConditionTrue }

func outOfService(n *v1.Node) bool { return len(n.Spec.Taints) > 0 }

// happen makes one thing happen to the fleet. With rough, also what no cluster should do.
func (s *fleet) happen(rough bool) {
	s.reviveOrKill()
	node := pick(s, nodeNames...)
	switch n := s.rand.IntN(40); {
	case n < 6:
		s.addPod()
	case n < 10:
		s.endPod()
	case n == 10:
		s.fail(node, s.rand.IntN(2) == 0)
	case n == 11 || n == 12:
		s.recover(node)
	case n == 13:
		s.swapFleetNode(node)
	case n == 14:
		s.swapDriver()
	case n == 15 && rough:
		s.detachRoughly()
	case n == 16 && rough:
		s.swapDisk(s.rand.IntN(len(disks)))
	case n == 17 && s.rand.IntN(3) == 0:
		s.note("nothing happens for a while")
		time.Sleep(5 * time.Minute)
	default:
		s.work(2)
	}
}

// endPod deletes a pod; one of a node that is down may be removed at once.
func (s *fleet) endPod() {
	all := s.all("pods")
	if len(all) == 0 {
		return
	}
	p := pick(s, all...).(*v1.Pod)
	force := s.rand.IntN(4) == 0
	s.note("pod %s is deleted, by force: %v", p.Name, force)
	s.change("pods", "a/"+p.Name, func(o object) bool {
		if !ends(o.(*v1.Pod)) {
			o.SetDeletionTimestamp(new(metav1.Now()))
		}
		return !force
	})
}

// fail stops a node's kubelet. What it has mounted stays, unless the node is said to be out of service.
func (s *fleet) fail(node string, forGood bool) {
	s.change("nodes", "/"+node, func(o object) bool {
		s.note("%s fails, for good: %v", node, forGood)
		n := o.(*v1.Node)
		n.Status.Conditions[0].Status = v1.ConditionUnknown
		if forGood {
			n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}
			s.mounted[node] = nil
		}
		return true
	})
}

// recover starts a node's kubelet again; after a reboot, if something was taken from the node meanwhile.
func (s *fleet) recover(node string) {
	s.change("nodes", "/"+node, func(o object) bool {
		n := o.(*v1.Node)
		if nodeReady(n) {
			return true
		}
		reboots := outOfService(n)
		for name := range s.mounted[node] {
			if direct(name) {
				reboots = reboots || !slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
				continue
			}
			reboots = reboots || !s.attached[name][node] || s.leaves(name, node)
		}
		s.note("%s recovers, with a reboot: %v", node, reboots)
		n.Status.Conditions[0].Status, n.Spec.Taints = v1.ConditionTrue, nil
		if reboots {
			s.mounted[node], n.Status.VolumesInUse = nil, nil
		}
		return true
	})
}

// leaves reports whether the attachment of a volume and a node is being deleted.
func (s *fleet) leaves(name v1.UniqueVolumeName, node string) bool {
	driver, handle, _ := attachments.SplitVolumeName(name)
	a, err := s.get("volumeattachments", "/"+attachments.Name(driver, handle, node))
	return err == nil && a.GetDeletionTimestamp() != nil
}

// swapFleetNode removes a node, with its machine, or adds it anew.
func (s *fleet) swapFleetNode(node string) {
	if !slices.ContainsFunc(s.all("nodes"), func(o object) bool { return o.GetName() == node }) {
		s.note("%s comes", node)
		s.addNode(node)
		return
	}
	s.change("nodes", "/"+node, func(object) bool {
		s.note("%s is gone", node)
		s.mounted[node] = nil
		return false
	})
}

func (s *fleet) swapDriver() {
	s.change("csidrivers", "/"+fileDriver, func(o object) bool {
		d := o.(*storagev1.CSIDriver)
		d.Spec.AttachRequired = new(!*d.Spec.AttachRequired)
		s.note("%s attaches: %v", fileDriver, *d.Spec.AttachRequired)
		return true
	})
}

// detachRoughly is an administrator who deletes an attachment.
func (s *fleet) detachRoughly() {
	all := s.all("volumeattachments")
	if len(all) == 0 {
		return
	}
	name := pick(s, all...).GetName()
	s.change("volumeattachments", "/"+name, func(o object) bool {
		s.note("somebody deletes %s", name)
		s.allowed[string(o.GetUID())] = true
		if o.GetDeletionTimestamp() == nil {
			o.SetDeletionTimestamp(new(metav1.Now()))
		}
		return len(o.GetFinalizers()) > 0
	})
}

// swapDisk removes a claim and its volume, as if their finalizers were none, or adds them anew.
func (s *fleet) swapDisk(i int) {
	volume, claim := fmt.Sprint("/v", i), fmt.Sprint("a/c", i)
	if !slices.ContainsFunc(s.all("persistentvolumes"), func(o object) bool { return "/"+o.GetName() == volume }) {
		s.note("disk %d comes", i)
		s.addDisk(i)
		return
	}
	s.note("disk %d is gone", i)
	s.change("persistentvolumes", volume, func(object) bool { return false })
	s.change("persistentvolumeclaims", claim, func(object) bool { return false })
}

// work has each kubelet and the attacher do a few steps, each of which takes one of so many turns.
func (s *fleet) work(turns int) {
	for _, o := range s.all("nodes") {
		if nodeReady(o.(*v1.Node)) && s.rand.IntN(turns) == 0 {
			s.kubelet(o.GetName())
		}
	}
	for _, o := range s.all("volumeattachments") {
		if s.rand.IntN(turns) == 0 {
			s.attacher(o.GetName())
		}
	}
	for _, o := range s.all("pods") { // the garbage collector of pods
		p := o.(*v1.Pod)
		lost := true
		for _, n := range s.all("nodes") {
			lost = lost && (n.GetName() != p.Spec.NodeName || outOfService(n.(*v1.Node)) && ends(p))
		}
		if lost && s.rand.IntN(turns) == 0 {
			s.change("pods", "a/"+p.Name, func(object) bool { return false })
		}
	}
}

// kubelet does one step for a node's pods: it says what it is going to use; mounts what it may; stops what is deleted;
// unmounts what nobody uses; says so; and removes pods.
func (s *fleet) kubelet(node string) {
	wants, done := map[v1.UniqueVolumeName]bool{}, []*v1.Pod(nil)
	for _, o := range s.all("pods") {
		p := o.(*v1.Pod)
		if p.Spec.NodeName != node {
			continue
		}
		if stopped(p) {
			done = append(done, p)
			continue
		}
		for _, i := range disksOf(p) {
			wants[disks[i].name] = true
		}
		s.change("pods", "a/"+p.Name, func(o object) bool { runOrStop(o.(*v1.Pod)); return true })
	}
	s.change("nodes", "/"+node, func(o object) bool {
		n := o.(*v1.Node)
		if s.mounted[node] == nil {
			s.mounted[node] = map[v1.UniqueVolumeName]bool{}
		}
		held := s.mounted[node]
		switch s.rand.IntN(3) {
		case 0: // what it is going to use, and has
			n.Status.VolumesInUse = nil
			for _, d := range disks {
				if wants[d.name] || held[d.name] {
					n.Status.VolumesInUse = append(n.Status.VolumesInUse, d.name)
				}
			}
		case 1:
			for name := range wants {
				if slices.Contains(n.Status.VolumesInUse, name) && slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name }) && !held[name] {
					s.mount(node, name)
				}
			}
		default:
			maps.DeleteFunc(held, func(name v1.UniqueVolumeName, _ bool) bool { return !wants[name] })
		}
		return true
	})
	for _, p := range done {
		s.change("pods", "a/"+p.Name, func(object) bool {
			return slices.ContainsFunc(disksOf(p), func(i int) bool { return s.mounted[node][disks[i].name] && !wants[disks[i].name] })
		})
	}
}

// runOrStop is what the containers of a pod do next.
func runOrStop(p *v1.Pod) {
	state := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	if ends(p) {
		state = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", State: state}}
}

// mount mounts a volume at a node that says that it is attached.
func (s *fleet) mount(node string, name v1.UniqueVolumeName) {
	s.mounted[node][name] = true
	s.note("%s mounts %s", node, name)
	if direct(name) {
		s.checkAlone(node, name)
		return
	}
	driver, handle, _ := attachments.SplitVolumeName(name)
	o, err := s.get("volumeattachments", "/"+attachments.Name(driver, handle, node))
	if err != nil {
		if s.attached[name][node] {
			s.wrong("%s mounts %s, and its attachment is gone", node, name)
		}
		return // somebody has deleted it, and the controller is about to hear of that
	}
	if a := o.(*storagev1.VolumeAttachment); a.DeletionTimestamp != nil && !s.allowed[string(a.UID)] {
		s.wrong("%s mounts %s, which is being detached", node, name)
	}
}

// checkAlone checks that no other node has mounted a disk, but for one from which it was taken by force.
func (s *fleet) checkAlone(node string, name v1.UniqueVolumeName) {
	for _, other := range nodeNames {
		o, err := s.get("nodes", "/"+other)
		if err != nil || other == node || !s.mounted[other][name] {
			continue
		}
		if n := o.(*v1.Node); !outOfService(n) && (nodeReady(n) || time.Since(s.idle[other+string(name)]) < attachdetach.Patience) {
			s.wrong("%s mounts %s, which %s has", node, name, other)
		}
	}
}

// attacher does one step for an attachment.
func (s *fleet) attacher(key string) {
	s.change("volumeattachments", "/"+key, func(o object) bool {
		a := o.(*storagev1.VolumeAttachment)
		name, exclusive := s.diskOf(a)
		fails := s.chance(0.2)
		switch {
		case a.DeletionTimestamp != nil && fails:
			a.Status.DetachError = &storagev1.VolumeError{Time: metav1.Now(), Message: "no"}
		case a.DeletionTimestamp != nil:
			n, err := s.get("nodes", "/"+a.Spec.NodeName)
			if s.mounted[a.Spec.NodeName][name] && err == nil && nodeReady(n.(*v1.Node)) && !s.allowed[string(a.UID)] {
				s.wrong("%s is detached from %s, which has it mounted", name, a.Spec.NodeName)
			}
			delete(s.attached[name], a.Spec.NodeName)
			s.note("%s is detached from %s", name, a.Spec.NodeName)
			return false
		case len(a.Finalizers) == 0:
			a.Finalizers = []string{"external-attacher/" + a.Spec.Attacher}
		case a.Status.Attached:
		case fails:
			a.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: "no"}
		default:
			if exclusive && len(s.attached[name]) > 0 && !s.attached[name][a.Spec.NodeName] {
				s.wrong("%s is to be attached to %s, and is attached to %v", name, a.Spec.NodeName, s.attached[name])
			}
			if s.attached[name] == nil {
				s.attached[name] = map[string]bool{}
			}
			s.attached[name][a.Spec.NodeName] = true
			a.Status.Attached, a.Status.AttachError = true, nil
			s.note("%s is attached to %s", name, a.Spec.NodeName)
		}
		return true
	})
}

// diskOf returns the volume that an attachment is for.
func (*fleet) diskOf(a *storagev1.VolumeAttachment) (v1.UniqueVolumeName, bool) {
	for _, d := range disks {
		driver, handle, _ := attachments.SplitVolumeName(d.name)
		if a.Name == attachments.Name(driver, handle, a.Spec.NodeName) {
			return d.name, d.exclusive
		}
	}
	return "", false
}

// checkWrite looks at what the controller writes.
func (s *fleet) checkWrite(resource string, old, obj metav1.Object) {
	if resource == "nodes" && old != nil && obj != nil {
		s.noteDisks(old.(*v1.Node), obj.(*v1.Node))
	}
	if resource != "volumeattachments" {
		return
	}
	if old == nil {
		s.checkNew(obj.(*storagev1.VolumeAttachment))
		return
	}
	if obj == nil {
		s.checkDeleted(old.(*storagev1.VolumeAttachment))
	}
}

// noteDisks notes what a node is told about disks that it attaches itself.
func (s *fleet) noteDisks(was, is *v1.Node) {
	for _, d := range disks {
		reported := func(n *v1.Node) bool {
			return slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == d.name })
		}
		if direct(d.name) && reported(was) != reported(is) {
			s.note("-> %s is told that it may have %s: %v", is.Name, d.name, reported(is))
		}
	}
}

func (s *fleet) checkNew(a *storagev1.VolumeAttachment) {
	name, exclusive := s.diskOf(a)
	s.note("-> %s for %s is to be attached", name, a.Spec.NodeName)
	for _, o := range s.objects["volumeattachments"] {
		other := o.(*storagev1.VolumeAttachment)
		if its, _ := s.diskOf(other); its == name && exclusive && other.UID != a.UID {
			s.wrong("%s gets an attachment for %s, and has one for %s", name, a.Spec.NodeName, other.Spec.NodeName)
		}
	}
}

func (s *fleet) checkDeleted(a *storagev1.VolumeAttachment) {
	name, _ := s.diskOf(a)
	s.note("-> %s for %s is to be detached", name, a.Spec.NodeName)
	o, err := s.get("nodes", "/"+a.Spec.NodeName)
	if err != nil {
		return
	}
	n := o.(*v1.Node)
	if slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name }) {
		s.wrong("%s is detached from %s, which is told that it is attached", name, n.Name)
	}
	if !slices.Contains(n.Status.VolumesInUse, name) {
		return
	}
	s.allowed[string(a.UID)] = true
	if !outOfService(n) && (nodeReady(n) || time.Since(s.idle[n.Name+string(name)]) < attachdetach.Patience) {
		s.wrong("%s is detached from %s, which uses it", name, n.Name)
	}
}

// needsDisk reports whether a pod needs a volume attached.
func (s *fleet) needsDisk(name v1.UniqueVolumeName, node string) bool {
	for i, d := range disks {
		if _, err := s.get("persistentvolumes", fmt.Sprint("/v", i)); d.name != name || err != nil || !s.attaches(name) {
			continue
		}
		for _, o := range s.objects["pods"] {
			if p := o.(*v1.Pod); p.Spec.NodeName == node && !stopped(p) && slices.Contains(disksOf(p), i) {
				return true
			}
		}
	}
	return false
}

func (s *fleet) attaches(name v1.UniqueVolumeName) bool {
	driver, _, _ := attachments.SplitVolumeName(name)
	d, err := s.get("csidrivers", "/"+driver)
	return err != nil || *d.(*storagev1.CSIDriver).Spec.AttachRequired
}

// clock notes since when no pod needs a volume at a node.
func (s *fleet) clock() {
	s.locked(func() {
		for _, d := range disks {
			for _, node := range nodeNames {
				key := node + string(d.name)
				switch _, known := s.idle[key]; {
				case s.needsDisk(d.name, node):
					delete(s.idle, key)
				case !known:
					s.idle[key] = time.Now()
				}
			}
		}
	})
}

// calmDown lets everything come to rest: nodes come back or are gone for so long that it does not matter any more.
func (s *fleet) calmDown(empty bool) {
	s.revive()
	for _, node := range nodeNames {
		s.recover(node)
	}
	for range 500 {
		if empty {
			for _, o := range s.all("pods") {
				s.change("pods", "a/"+o.GetName(), func(o object) bool {
					if o.GetDeletionTimestamp() == nil {
						o.SetDeletionTimestamp(new(metav1.Now()))
					}
					return true
				})
			}
		}
		s.work(1)
		time.Sleep(time.Second)
	}
}

// fleetRests checks everything when there is nothing more to do.
func (s *fleet) fleetRests() {
	s.locked(func() {
		for _, d := range disks {
			has, want, held := 0, 0, false
			for _, node := range nodeNames {
				n, err := s.get("nodes", "/"+node)
				if err != nil {
					continue
				}
				needed := s.needsDisk(d.name, node)
				reported := slices.ContainsFunc(n.(*v1.Node).Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == d.name })
				if needed {
					want++
				} else if slices.Contains(n.(*v1.Node).Status.VolumesInUse, d.name) {
					held = true // the pod goes on, although the volume is gone, or is not to be attached any more
					continue
				}
				if reported {
					has++
				}
				if reported != s.attached[d.name][node] && !direct(d.name) || reported && !needed || needed && !reported && !d.exclusive {
					s.wrong("%s at %s: needed %v, reported %v, attached %v", d.name, node, needed, reported, s.attached[d.name][node])
				}
			}
			if want > 0 && has == 0 && !held || d.exclusive && has > 1 {
				s.wrong("%s is wanted by %d nodes, and %d have it", d.name, want, has)
			}
			if want == 0 && !held && len(s.attached[d.name]) > 0 {
				s.wrong("%s is left attached: %v", d.name, s.attached[d.name])
			}
		}
		for _, o := range s.objects["volumeattachments"] {
			a := o.(*storagev1.VolumeAttachment)
			if name, _ := s.diskOf(a); !s.attached[name][a.Spec.NodeName] || a.DeletionTimestamp != nil {
				s.wrong("attachment %s of %s and %s is left", a.Name, name, a.Spec.NodeName)
			}
		}
	})
}

// Whatever happens to pods, nodes, volumes and attachments, and whenever the controller is killed: no volume that one
// node may have has two, none is detached from under a node that uses it unless the rules say so, none is mounted while
// it is detached, every pod gets what it needs, and nothing is left attached.
func TestLivesOfAttachments(t *testing.T) {
	for seed := range 2 * lifetimes(t) {
		ok := false
		synctest.Test(t, func(t *testing.T) {
			s := &fleet{
				mounted: map[string]map[v1.UniqueVolumeName]bool{}, attached: map[v1.UniqueVolumeName]map[string]bool{},
				allowed: map[string]bool{}, idle: map[string]time.Time{},
			}
			s.mortal = newMortal(func(l *life, f informers.SharedInformerFactory) (controller.Controller, error) {
				return attachdetach.New(l.Clientset, f, attachdetach.Options{})
			})
			ok = play(t, seed, func(l *life, _ informers.SharedInformerFactory) (controller.Controller, error) {
				s.life = l
				l.onWrite, l.refuse, l.calmed = s.checkWrite, s.dies, func() { s.calmDown(seed%3 == 0) }
				l.add("csidrivers", &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fileDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)}})
				for _, name := range nodeNames {
					s.addNode(name)
				}
				for i := range disks {
					s.addDisk(i)
				}
				return s.mortal, nil
			}, func(*life) {
				for range 1 + s.rand.IntN(5) {
					s.happen(seed%2 == 0)
					s.clock()
					time.Sleep(time.Duration(s.rand.IntN(100)) * time.Millisecond)
				}
			}, func(*life) { s.fleetRests() })
		})
		if !ok {
			return
		}
	}
}
