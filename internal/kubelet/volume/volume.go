// Package volume sets up pods' volumes and takes them down.
//
// Each kind of volume is a type of its own, in a file of its own (kind). What a claim is bound to is found out first
// (claim.go); the kinds see a pod's own source or a PersistentVolume. Every operation can be repeated, also after a
// crash in the middle of it. Facts are what the kernel has mounted and what is on the disk; nothing is remembered in
// memory. What may hang in the kernel keeps nobody waiting but its own pod, which can stop waiting (calls.go).
//
// The layout below a pod's directory is the usual one: volumes/kubernetes.io~<kind>/<name>,
// volumeDevices/kubernetes.io~<kind>/<name> and volume-subpaths/<name>/<container>/<index>. Besides, claims/<name> has
// what a claim turned out to be (record.go).
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/disks"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/safepath"
)

// Objects looks up what volumes are made from.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
	Claim(namespace, name string) (*v1.PersistentVolumeClaim, error)
}

// Tokens issues service account tokens that are bound to a pod.
type Tokens interface {
	Token(ctx context.Context, pod *v1.Pod, src *v1.ServiceAccountTokenProjection) (token string, refreshAt time.Time, err error)
	// Issue is Token for whoever needs to know when the token expires.
	Issue(ctx context.Context, pod *v1.Pod, src *v1.ServiceAccountTokenProjection) (authenticationv1.TokenRequestStatus, error)
}

// Certificates has the certificates of pods; volume and source say which of a pod's.
type Certificates interface {
	Bundle(ctx context.Context, pod *v1.Pod, volume string, source int, src *v1.PodCertificateProjection) (key, chain []byte, refreshAt time.Time, err error)
	Forget(uid types.UID)
}

// Mounter sets up and clears volumes.
type Mounter struct {
	Dirs criconfig.Dirs
	// Objects returns a view whose look-ups end with the context.
	Objects func(ctx context.Context) Objects
	// Volume asks the API server for a PersistentVolume; nil if there is none to ask.
	Volume func(ctx context.Context, name string) (*v1.PersistentVolume, error)
	Tokens Tokens
	// Bundles, if not nil, returns the cluster's trust bundles.
	Bundles func(ctx context.Context) ([]certificatesv1.ClusterTrustBundle, error)
	// Certificates, if not nil, has the certificates of pods.
	Certificates Certificates
	// NodeName and Allocatable are for the downward API.
	NodeName    string
	Allocatable func() v1.ResourceList
	// NodeLabels are what the affinity of PersistentVolumes is about.
	NodeLabels func() map[string]string
	// Freed, if not nil, wakes a pod whose volume another pod has let go of.
	Freed func(uid types.UID)
	// Warn, if not nil, tells a pod's owner what may not be as the pod wants it.
	Warn func(pod *v1.Pod, reason, message string)
	// Tell, if not nil, tells a pod's owner what was done.
	Tell func(pod *v1.Pod, reason, message string)
	// Reject, if not nil, ends a pod that cannot have a volume on this node.
	Reject func(pod *v1.Pod, reason, message string)
	// CSI, if not nil, has the node's CSI drivers.
	CSI *CSI
	// Attached, if not nil, says which volumes the node may use.
	Attached *Attached

	disks     disks.Node
	calls     calls
	waiting   waiting
	leftovers leftovers
}

// spec is a volume that a kind is to set up.
type spec struct {
	pod *v1.Pod
	// name of the volume in the pod's spec.
	name string
	// own is what the pod's spec says.
	own *v1.VolumeSource
	// pv is what the claim is bound to that own names; nil for all other volumes.
	pv *v1.PersistentVolume
	// claim that it is bound to.
	claim    *v1.PersistentVolumeClaim
	readOnly bool
	// block: containers get a device, not a file system.
	block bool
}

// step returns what a step is called, which depends on what containers get.
func (s *spec) step(ofMount, ofDevice string) string {
	if s.block {
		return ofDevice
	}
	return ofMount
}

// kind is one kind of volume.
type kind interface {
	// is reports whether the volume is of this kind.
	is(s *spec) bool
	// folder is what the kind's folder in a pod's directory is called; "" if its volumes are not in there.
	folder() string
	// path is where the volume is on the host, for containers to have it; dir is its place in the pod's directory.
	path(s *spec, dir string) string
	// setUp makes the volume, or renews what is in it. If refreshAt is not zero, it is to be called again by then.
	setUp(ctx context.Context, s *spec, path string) (refreshAt time.Time, err error)
	// ready reports whether the volume of a claim is there as setUp has left it.
	ready(path string) (bool, error)
	// tearDown takes from the pod what setUp made at dir. What is in a volume that outlives the pod stays.
	tearDown(ctx context.Context, dir string) error
}

// renewer is a kind whose volumes want something while they are there.
type renewer interface {
	// renew looks after a volume that is set up. If the time is not zero, it is to be called again by then.
	renew(ctx context.Context, s *spec, path string) (time.Time, error)
}

// kinds has every kind of volume that this node can set up.
func (m *Mounter) kinds() []kind {
	return []kind{
		m.emptyDirs(), m.configMaps(), m.secrets(), m.downwardAPIs(), m.projections(), hostPath{}, m.locals(), nfsMounts(),
		m.iscsiVolumes(), m.fibreVolumes(), m.csiVolumes(),
	}
}

func (m *Mounter) kindOf(s *spec) kind {
	for _, k := range m.kinds() {
		if k.is(s) {
			return k
		}
	}
	return nil
}

// placed is what kinds have in common whose volumes are in the pod's directory.
type placed string

func (p placed) folder() string                { return string(p) }
func (placed) path(_ *spec, dir string) string { return dir }

// ready is for kinds that are not behind claims.
func (placed) ready(string) (bool, error) { return false, nil }

func (placed) tearDown(_ context.Context, dir string) error { return mount.UnmountStack(dir) }

func find(pod *v1.Pod, name string) *v1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// Mount sets up a volume, or updates its content. refreshAt, if not zero, is when to call Mount again even if no object
// changed. It returns soon after the context ends; what the kernel does not return from goes on until it does.
func (m *Mounter) Mount(ctx context.Context, pod *v1.Pod, name string) (refreshAt time.Time, err error) {
	v := find(pod, name)
	if v == nil {
		return time.Time{}, fmt.Errorf("volume %q is not in the pod's spec", name)
	}
	return call(ctx, &m.calls, pod.UID, name, func() (time.Time, error) {
		if claim, ok := claimOf(pod, v); ok {
			return m.mountClaim(ctx, pod, v, claim)
		}
		s := &spec{pod: pod, name: name, own: &v.VolumeSource}
		k := m.kindOf(s)
		if k == nil {
			return time.Time{}, failed(s, unsupported(s))
		}
		at, err := k.setUp(ctx, s, k.path(s, m.place(k, s)))
		return at, failed(s, err)
	})
}

// Renew is Mount for a volume that is set up, and of which an object has changed, or whose time has come. Nothing waits
// for it.
func (m *Mounter) Renew(ctx context.Context, pod *v1.Pod, name string) (refreshAt time.Time, err error) {
	v := find(pod, name)
	if v == nil {
		return time.Time{}, fmt.Errorf("volume %q is not in the pod's spec", name)
	}
	ref, claimed := claimOf(pod, v)
	if !claimed && v.CSI == nil {
		return m.Mount(ctx, pod, name)
	}
	return call(ctx, &m.calls, pod.UID, name, func() (time.Time, error) {
		if claimed {
			return m.renewClaim(ctx, pod, v, ref)
		}
		s := &spec{pod: pod, name: name, own: &v.VolumeSource}
		return m.renewBy(ctx, m.kindOf(s), s)
	})
}

func (m *Mounter) renewBy(ctx context.Context, k kind, s *spec) (time.Time, error) {
	r, ok := k.(renewer)
	if !ok {
		return time.Time{}, nil
	}
	at, err := r.renew(ctx, s, k.path(s, m.place(k, s)))
	return at, failed(s, err)
}

// place is where a volume is in the pod's directory.
func (m *Mounter) place(k kind, s *spec) string {
	if s.pv == nil {
		return filepath.Join(m.Dirs.Volumes(s.pod.UID), k.folder(), s.name)
	}
	if s.block {
		return filepath.Join(m.Dirs.Devices(s.pod.UID), k.folder(), s.pv.Name)
	}
	return filepath.Join(m.Dirs.Volumes(s.pod.UID), k.folder(), s.pv.Name)
}

// Path returns where a pod's volume is on the host. That of a claim is known once it is set up.
func (m *Mounter) Path(pod *v1.Pod, v *v1.Volume) (string, error) {
	at, err := m.locate(pod, v)
	return at.Path, err
}

// location is what containers need to know of a volume.
type location struct {
	Path string
	// ReadOnly: no container may write to it, whatever its mount says.
	ReadOnly bool `json:",omitempty"`
	// Block: Path is a device.
	Block bool `json:",omitempty"`
}

func (m *Mounter) locate(pod *v1.Pod, v *v1.Volume) (location, error) {
	if _, ok := claimOf(pod, v); ok {
		b, err := readBound(m.Dirs, pod.UID, v.Name)
		if err != nil {
			return location{}, fmt.Errorf("volume %q is not set up: %w", v.Name, err)
		}
		return b.location, nil
	}
	s := &spec{pod: pod, name: v.Name, own: &v.VolumeSource}
	k := m.kindOf(s)
	if k == nil {
		return location{}, unsupported(s)
	}
	_, written := k.(*rendered)
	return location{Path: k.path(s, m.place(k, s)), ReadOnly: written}, nil
}

func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// folders are those in a pod's directory that hold what its volumes need.
func (m *Mounter) folders(uid types.UID) []string {
	return []string{m.Dirs.Subpaths(uid), m.Dirs.Volumes(uid), m.Dirs.Devices(uid), m.Dirs.Claims(uid)}
}

// Left reports whether anything of the pod's volumes is still on the node.
func (m *Mounter) Left(uid types.UID) bool {
	for _, path := range append(m.folders(uid), m.Dirs.EtcHosts(uid)) {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return m.wrote(uid)
}

// Clear takes down all volumes of a pod of which nothing runs. What is in volumes that outlive the pod stays. It also
// removes what containers wrote into our files: if they filled the disk that way, other pods would be evicted for it.
func (m *Mounter) Clear(ctx context.Context, uid types.UID) error {
	_, err := call(ctx, &m.calls, uid, all, func() (struct{}, error) { return struct{}{}, m.clear(ctx, uid) })
	return err
}

func (m *Mounter) clear(ctx context.Context, uid types.UID) error {
	used, err := boundOf(m.Dirs, uid)
	if err != nil {
		return err
	}
	if err := m.takeDown(ctx, uid); err != nil {
		return err
	}
	if m.Certificates != nil {
		m.Certificates.Forget(uid)
	}
	errs := []error{m.clearWritten(uid)}
	for _, dir := range m.folders(uid) {
		errs = append(errs, safepath.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, b := range used {
		m.wakeOthers(b.Volume)
	}
	return nil
}

// takeDown unmounts everything in a pod's directory: parts of volumes before the volumes.
func (m *Mounter) takeDown(ctx context.Context, uid types.UID) error {
	parts, err := filepath.Glob(filepath.Join(m.Dirs.Subpaths(uid), "*", "*", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, part := range parts {
		errs = append(errs, mount.UnmountStack(part))
	}
	of := map[string]kind{}
	for _, k := range m.kinds() {
		of[k.folder()] = k
	}
	for _, root := range []string{m.Dirs.Volumes(uid), m.Dirs.Devices(uid)} {
		places, err := filepath.Glob(filepath.Join(root, "*", "*"))
		errs = append(errs, err)
		for _, dir := range places {
			if k := of[filepath.Base(filepath.Dir(dir))]; k != nil {
				errs = append(errs, k.tearDown(ctx, dir))
			} else { // of another release, or of another kubelet
				errs = append(errs, mount.UnmountStack(dir))
			}
		}
	}
	return errors.Join(errs...)
}
