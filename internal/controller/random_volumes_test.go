package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/persistentvolume"
)

// mortal is a life whose controller is killed between its writes, and started again each time.
type mortal struct {
	*life
	build func(informers.SharedInformerFactory) (controller.Controller, error)

	// Guarded by the API's lock.
	left int  // how many writes the controller has left before it is dead; none if it is negative
	dead bool // its writes do not arrive any more

	killed chan struct{}
}

func newMortal(build func(*life, informers.SharedInformerFactory) (controller.Controller, error)) *mortal {
	m := &mortal{left: -1, killed: make(chan struct{})}
	m.build = func(f informers.SharedInformerFactory) (controller.Controller, error) { return build(m.life, f) }
	return m
}

// Run implements controller.Controller.
func (m *mortal) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := m.once(klog.NewContext(ctx, logr.Discard())); err != nil {
			return err
		}
		m.locked(func() { m.dead, m.left = false, -1 })
	}
	return nil
}

// once runs the controller until it is killed.
func (m *mortal) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactory(m.Clientset, 0)
	c, err := m.build(f)
	if err != nil {
		cancel()
		return err
	}
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case <-m.killed:
	case <-ctx.Done():
	}
	cancel()
	err = <-ended
	f.Shutdown()
	return err
}

// locked runs f under the API's lock.
func (m *mortal) locked(f func()) {
	m.hostileAPI.mu.Lock()
	defer m.hostileAPI.mu.Unlock()
	f()
}

// dies is the API's refuse.
func (m *mortal) dies(k8stesting.Action) error {
	if m.left == 0 {
		m.dead = true
	}
	if m.dead {
		return errors.New("killed")
	}
	m.left--
	return nil
}

// reviveOrKill starts a controller again that is dead, or has it die after a few more writes.
func (m *mortal) reviveOrKill() {
	dead, kill := false, m.rand.IntN(10) == 0
	m.locked(func() {
		if dead = m.dead; !dead && kill {
			m.left = m.rand.IntN(5)
		}
	})
	if dead && m.rand.IntN(2) == 0 {
		m.note("the controller starts again")
		m.killed <- struct{}{}
	}
}

// revive has the controller live for good.
func (m *mortal) revive() {
	dead := false
	m.locked(func() { dead, m.left = m.dead, -1 })
	if dead {
		m.killed <- struct{}{}
	}
}

// storage is a life of claims and volumes, with users, a scheduler, a provisioner, and a mortal controller.
type storage struct {
	*mortal
	made      int                  // how many things there have been, for their names
	disturbed map[string]time.Time // guarded by the API's lock
}

func pick[T any](l interface{ pick(n int) int }, of ...T) T { return of[l.pick(len(of))] }

func (l *life) pick(n int) int { return l.rand.IntN(n) }

func gib(n int) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(int64(n)<<30, resource.BinarySI)}
}

// claims and classes that there may be.
var (
	accessModes = [][]v1.PersistentVolumeAccessMode{{v1.ReadWriteOnce}, {v1.ReadWriteOnce, v1.ReadOnlyMany}, {v1.ReadWriteMany}, {v1.ReadWriteOncePod}, {v1.ReadWriteOnce, v1.ReadWriteMany}}
	classNames  = []string{"", "", "fast", "late", "made", "madelate", "missing"}
)

func class(name string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/maker", VolumeBindingMode: new(storagev1.VolumeBindingImmediate)}
	if name == "late" || name == "madelate" {
		c.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
	}
	if name == "fast" || name == "late" {
		c.Provisioner = volume.NotSupportedProvisioner
	}
	return c
}

func (s *storage) addClaim() {
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pick(s, "a", "b"), Name: fmt.Sprint("c", s.rand.IntN(6))}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}}
	c.Spec.AccessModes, c.Spec.Resources.Requests = pick(s, accessModes...), gib(1+s.rand.IntN(4))
	if name := pick(s, append(classNames, "none")...); name != "none" {
		c.Spec.StorageClassName = &name
	}
	if s.rand.IntN(5) == 0 {
		c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"gold"}}}}
	}
	if s.rand.IntN(6) == 0 {
		if pv := s.anyVolume(); pv != nil {
			c.Spec.VolumeName = pv.Name
		}
	}
	if slices.ContainsFunc(s.all("persistentvolumeclaims"), func(o object) bool { return o.GetNamespace() == c.Namespace && o.GetName() == c.Name }) {
		return
	}
	s.note("claim %s/%s: class %q, %v, %v, volume %q", c.Namespace, c.Name, ptr.Deref(c.Spec.StorageClassName, "(none)"), c.Spec.AccessModes, c.Spec.Resources.Requests.Storage(), c.Spec.VolumeName)
	s.add("persistentvolumeclaims", c)
}

func (s *storage) anyClaim() *v1.PersistentVolumeClaim {
	all := s.all("persistentvolumeclaims")
	if len(all) == 0 {
		return nil
	}
	return pick(s, all...).(*v1.PersistentVolumeClaim)
}

func (s *storage) anyVolume() *v1.PersistentVolume {
	all := s.all("persistentvolumes")
	if len(all) == 0 {
		return nil
	}
	return pick(s, all...).(*v1.PersistentVolume)
}

func (s *storage) addVolume() {
	if len(s.all("persistentvolumes")) >= 8 { // claims are to compete
		return
	}
	s.made++
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v", s.made)}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumePending}}
	pv.Spec = v1.PersistentVolumeSpec{
		AccessModes: pick(s, accessModes...), Capacity: gib(1 + s.rand.IntN(6)), StorageClassName: pick(s, classNames...),
		PersistentVolumeReclaimPolicy: pick(s, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle),
		PersistentVolumeSource:        v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}},
	}
	if s.rand.IntN(2) == 0 {
		pv.Labels = map[string]string{"tier": "gold"}
	}
	if c := s.anyClaim(); c != nil && s.rand.IntN(4) == 0 {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: pick(s, c.UID, "")}
	}
	s.note("volume %s: class %q, %v, %v, for %v", pv.Name, pv.Spec.StorageClassName, pv.Spec.AccessModes, pv.Spec.Capacity.Storage(), pv.Spec.ClaimRef)
	s.add("persistentvolumes", pv)
}

// disturb changes a volume as no controller would.
func (s *storage) disturb(pv *v1.PersistentVolume, f func(*v1.PersistentVolume) bool) {
	s.locked(func() { s.disturbed[pv.Name] = time.Now() })
	s.change("persistentvolumes", "/"+pv.Name, func(o object) bool { return f(o.(*v1.PersistentVolume)) })
}

// act makes one thing happen.
func (s *storage) act(rough bool) {
	s.reviveOrKill()
	claim, pv := s.anyClaim(), s.anyVolume()
	switch n := s.rand.IntN(20); {
	case n < 5:
		s.addClaim()
	case n < 10:
		s.addVolume()
	case (n == 10 || n == 15) && claim != nil:
		s.note("%s/%s is deleted", claim.Namespace, claim.Name)
		s.change("persistentvolumeclaims", claim.Namespace+"/"+claim.Name, func(object) bool { return false })
		if s.rand.IntN(2) == 0 {
			s.addClaim()
		}
	case n == 11 && pv != nil && rough:
		s.note("%s is deleted", pv.Name)
		s.disturb(pv, func(*v1.PersistentVolume) bool { return false })
	case n == 12 && pv != nil && rough:
		s.note("%s loses its claim", pv.Name)
		s.disturb(pv, func(pv *v1.PersistentVolume) bool { pv.Spec.ClaimRef = nil; return true })
	case n == 13 && pv != nil && pv.Spec.ClaimRef != nil && rough:
		s.note("%s loses the UID of its claim", pv.Name)
		s.disturb(pv, func(pv *v1.PersistentVolume) bool {
			if pv.Spec.ClaimRef != nil {
				pv.Spec.ClaimRef.UID = ""
			}
			return true
		})
	case n == 16 && pv != nil && pv.Status.Phase != v1.VolumeBound:
		s.note("%s is deleted", pv.Name)
		s.change("persistentvolumes", "/"+pv.Name, func(o object) bool { return o.(*v1.PersistentVolume).Status.Phase == v1.VolumeBound })
	case n == 14:
		s.swapClass(pick(s, classNames[2:6]...))
	default:
		s.others()
	}
}

// swapClass adds a class, makes it the default or not, or removes it.
func (s *storage) swapClass(name string) {
	all := s.all("storageclasses")
	if !slices.ContainsFunc(all, func(o object) bool { return o.GetName() == name }) {
		s.note("class %s", name)
		s.add("storageclasses", class(name))
		return
	}
	s.note("class %s is, or is not, the default", name)
	s.change("storageclasses", "/"+name, func(o object) bool {
		if s.rand.IntN(4) == 0 {
			return false
		}
		o.SetAnnotations(map[string]string{"storageclass.kubernetes.io/is-default-class": pick(s, "true", "false")})
		return true
	})
}

// others do their part: a scheduler for one claim, a provisioner that makes one volume, or deletes one.
func (s *storage) others() {
	for _, o := range s.all("persistentvolumeclaims") {
		c := o.(*v1.PersistentVolumeClaim)
		if c.Spec.VolumeName != "" || s.rand.IntN(3) > 0 {
			continue
		}
		name := volume.GetPersistentVolumeClaimClass(c)
		switch {
		case name == "madelate" && c.Annotations[volume.AnnSelectedNode] == "":
			s.change("persistentvolumeclaims", c.Namespace+"/"+c.Name, func(o object) bool {
				metav1.SetMetaDataAnnotation(&o.(*v1.PersistentVolumeClaim).ObjectMeta, volume.AnnSelectedNode, "n")
				return true
			})
		case name == "late":
			s.schedule(c)
		case c.Annotations[volume.AnnStorageProvisioner] != "":
			s.provision(c)
		}
	}
	for _, o := range s.all("persistentvolumes") {
		pv := o.(*v1.PersistentVolume)
		if pv.Status.Phase == v1.VolumeReleased && pv.Spec.CSI != nil && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
			s.note("%s is deleted by its provisioner", pv.Name)
			s.change("persistentvolumes", "/"+pv.Name, func(object) bool { return false })
		}
	}
}

// schedule gives a claim a volume that its pod's node can reach, without completing that.
func (s *storage) schedule(c *v1.PersistentVolumeClaim) {
	for _, o := range s.all("persistentvolumes") {
		pv := o.(*v1.PersistentVolume)
		if pv.Spec.ClaimRef == nil && fits(c, pv) {
			next, _, err := volume.GetBindVolumeToClaim(pv, c)
			if err != nil {
				panic(err)
			}
			s.note("the scheduler gives %s to %s/%s", pv.Name, c.Namespace, c.Name)
			s.change("persistentvolumes", "/"+pv.Name, func(o object) bool {
				if now := o.(*v1.PersistentVolume); now.ResourceVersion == pv.ResourceVersion {
					now.Spec, now.Annotations = next.Spec, next.Annotations
				}
				return true
			})
			return
		}
	}
}

func (s *storage) provision(c *v1.PersistentVolumeClaim) {
	name := "pvc-" + string(c.UID)
	if slices.ContainsFunc(s.all("persistentvolumes"), func(o object) bool { return o.GetName() == name }) {
		return
	}
	s.note("%s is made for %s/%s", name, c.Namespace, c.Name)
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnDynamicallyProvisioned: "example.com/maker"}}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumePending}}
	pv.Spec = v1.PersistentVolumeSpec{
		AccessModes: c.Spec.AccessModes, Capacity: c.Spec.Resources.Requests, StorageClassName: volume.GetPersistentVolumeClaimClass(c),
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, ClaimRef: &v1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "example.com/maker", VolumeHandle: name}},
	}
	s.add("persistentvolumes", pv)
}

// fits is whether a volume that nobody has is one for the claim, by the words of Kubernetes' documentation.
func fits(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	if c.Spec.Selector != nil && pv.Labels["tier"] != "gold" {
		return false
	}
	for _, m := range c.Spec.AccessModes {
		if !slices.Contains(pv.Spec.AccessModes, m) {
			return false
		}
	}
	return pv.Spec.StorageClassName == volume.GetPersistentVolumeClaimClass(c) && pv.Spec.Capacity.Storage().Cmp(*c.Spec.Resources.Requests.Storage()) >= 0
}

// check looks at what the controller writes.
func (s *storage) check(_ string, old, obj metav1.Object) {
	if old == nil {
		return // it is the world that makes things
	}
	switch is := obj.(type) {
	case *v1.PersistentVolume:
		s.note("-> %s: %v, %s", is.Name, is.Spec.ClaimRef, is.Status.Phase)
		if old.(*v1.PersistentVolume).Status.Phase != is.Status.Phase {
			s.checkPhase(is)
		}
	case *v1.PersistentVolumeClaim:
		s.note("-> %s/%s: volume %q, %s, %v", is.Namespace, is.Name, is.Spec.VolumeName, is.Status.Phase, is.Annotations)
		if at, ok := s.disturbed[is.Spec.VolumeName]; old.(*v1.PersistentVolumeClaim).Status.Phase != is.Status.Phase && (!ok || time.Since(at) > time.Minute) {
			s.checkClaim(is)
		}
	}
}

// checkPhase looks at a volume that gets another phase.
func (s *storage) checkPhase(pv *v1.PersistentVolume) {
	if pv.Status.Phase != v1.VolumeReleased && pv.Status.Phase != v1.VolumeFailed {
		return
	}
	ref := pv.Spec.ClaimRef
	if c, ok := s.objects["persistentvolumeclaims"][ref.Namespace+"/"+ref.Name].(*v1.PersistentVolumeClaim); ok && c.UID == ref.UID && (c.Spec.VolumeName == "" || c.Spec.VolumeName == pv.Name) {
		s.wrong("%s is %s, and its claim exists: %v", pv.Name, pv.Status.Phase, ref)
	}
}

// checkClaim looks at a claim that gets another phase.
func (s *storage) checkClaim(c *v1.PersistentVolumeClaim) {
	name := c.Spec.VolumeName
	pv, ok := s.objects["persistentvolumes"]["/"+name].(*v1.PersistentVolume)
	its := ok && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID
	if its != (c.Status.Phase == v1.ClaimBound) {
		s.wrong("claim %s/%s becomes %s, and %q is: %v", c.Namespace, c.Name, c.Status.Phase, name, pv)
	}
	for _, o := range s.objects["persistentvolumeclaims"] {
		if other := o.(*v1.PersistentVolumeClaim); other.UID != c.UID && c.Status.Phase == v1.ClaimBound && other.Status.Phase == v1.ClaimBound && other.Spec.VolumeName == name {
			s.wrong("claims %s/%s and %s/%s both have volume %s", c.Namespace, c.Name, other.Namespace, other.Name, name)
		}
	}
}

// rests checks everything when there is nothing more to do.
func (s *storage) rests() {
	claims, byUID := map[string]*v1.PersistentVolumeClaim{}, map[string]*v1.PersistentVolumeClaim{}
	volumes, classes := map[string]*v1.PersistentVolume{}, map[string]*storagev1.StorageClass{}
	for _, o := range s.all("persistentvolumeclaims") {
		c := o.(*v1.PersistentVolumeClaim)
		claims[c.Namespace+"/"+c.Name], byUID[string(c.UID)] = c, c
	}
	for _, o := range s.all("persistentvolumes") {
		volumes[o.GetName()] = o.(*v1.PersistentVolume)
	}
	standard := false
	for _, o := range s.all("storageclasses") {
		classes[o.GetName()] = o.(*storagev1.StorageClass)
		standard = standard || o.GetAnnotations()["storageclass.kubernetes.io/is-default-class"] == "true"
	}
	owner := map[string]string{}
	for key, c := range claims {
		pv := volumes[c.Spec.VolumeName]
		its := pv != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID
		switch c.Status.Phase {
		case v1.ClaimBound:
			if other, twice := owner[c.Spec.VolumeName]; twice || !its || pv.Status.Phase != v1.VolumeBound {
				s.wrong("claim %s has volume %s, and so has %q; the volume: %v", key, c.Spec.VolumeName, other, pv)
			}
			owner[c.Spec.VolumeName] = key
			if c.Status.Capacity.Storage().IsZero() || len(c.Status.AccessModes) == 0 {
				s.wrong("status of %s: %+v", key, c.Status)
			}
		case v1.ClaimLost:
			if c.Spec.VolumeName == "" || pv != nil && (its || pv.Spec.ClaimRef == nil) {
				s.wrong("claim %s is lost, and its volume %v", key, pv)
			}
		default:
			s.pends(key, c, volumes, classes, standard)
		}
	}
	for name, pv := range volumes {
		s.inPhase(name, pv, byUID)
	}
}

// pends checks that there is no volume for a claim that is pending.
func (s *storage) pends(key string, c *v1.PersistentVolumeClaim, volumes map[string]*v1.PersistentVolume, classes map[string]*storagev1.StorageClass, standard bool) {
	if pv := volumes[c.Spec.VolumeName]; pv != nil && pv.Spec.ClaimRef != nil && (pv.Spec.ClaimRef.UID == c.UID || pv.Spec.ClaimRef.UID == "" && pv.Spec.ClaimRef.Name == c.Name && pv.Spec.ClaimRef.Namespace == c.Namespace) {
		s.wrong("claim %s has volume %s, and is pending", key, pv.Name)
	}
	if c.Spec.VolumeName != "" {
		return
	}
	if c.Spec.StorageClassName == nil && standard {
		s.wrong("claim %s did not get the default class", key)
	}
	name := volume.GetPersistentVolumeClaimClass(c)
	its := classes[name]
	late := its != nil && *its.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	for _, pv := range volumes {
		ref := pv.Spec.ClaimRef
		kept := ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name && (ref.UID == "" || ref.UID == c.UID)
		if kept {
			like := pv.DeepCopy() // neither class nor labels count if it is kept for the claim
			like.Spec.StorageClassName, like.Labels = name, map[string]string{"tier": "gold"}
			if fits(c, like) {
				s.wrong("volume %s is kept for claim %s, which is pending", pv.Name, key)
			}
		}
		if ref == nil && pv.Status.Phase == v1.VolumeAvailable && fits(c, pv) && !late {
			s.wrong("volume %s fits claim %s, which is pending", pv.Name, key)
		}
	}
	if asked := c.Annotations[volume.AnnStorageProvisioner] != ""; its != nil && name == "made" && !asked {
		s.wrong("nobody was asked for a volume for claim %s", key)
	}
}

// inPhase checks the phase of a volume.
func (s *storage) inPhase(name string, pv *v1.PersistentVolume, byUID map[string]*v1.PersistentVolumeClaim) {
	ref, phase := pv.Spec.ClaimRef, pv.Status.Phase
	switch {
	case ref == nil || ref.UID == "":
		if phase != v1.VolumeAvailable {
			s.wrong("volume %s is free, and %s", name, phase)
		}
	case byUID[string(ref.UID)] == nil:
		if phase != v1.VolumeReleased && phase != v1.VolumeFailed {
			s.wrong("the claim of volume %s is gone; it is %s", name, phase)
		}
		if phase == v1.VolumeReleased && pv.Spec.CSI == nil && pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain {
			s.wrong("nobody will delete volume %s, and it has not failed", name)
		}
	case byUID[string(ref.UID)].Spec.VolumeName == name:
		if phase != v1.VolumeBound {
			s.wrong("volume %s has its claim, and is %s", name, phase)
		}
	case byUID[string(ref.UID)].Spec.VolumeName != "":
		if pv.Spec.CSI == nil {
			s.wrong("volume %s is kept for claim %v, which has another one", name, ref)
		}
	}
}

// Whatever happens to claims, volumes and classes, and whenever the controller is killed, no volume has two claims, no
// claim waits for a volume that is there, and both sides say the same in the end.
func TestLivesOfClaimsAndVolumes(t *testing.T) {
	for seed := range 2 * lifetimes(t) {
		ok := false
		synctest.Test(t, func(t *testing.T) {
			s := &storage{disturbed: map[string]time.Time{}}
			s.mortal = newMortal(func(l *life, f informers.SharedInformerFactory) (controller.Controller, error) {
				return persistentvolume.New(l.Clientset, f)
			})
			ok = play(t, seed, func(l *life, _ informers.SharedInformerFactory) (controller.Controller, error) {
				s.life = l
				l.onWrite, l.refuse, l.calmed = s.check, s.dies, s.revive
				for _, name := range []string{"fast", "late", "made", "madelate"} {
					l.add("storageclasses", class(name))
				}
				return s.mortal, nil
			}, func(*life) {
				for range 1 + s.rand.IntN(3) {
					s.act(seed%2 == 0)
				}
			}, func(*life) { s.rests() })
		})
		if !ok {
			return
		}
	}
}
