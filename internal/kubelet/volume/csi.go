package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/safepath"
)

// csiVolume is a volume of a CSI driver, by a PersistentVolume or by a pod's own spec.
//
// A volume is staged once for the node, then published for each pod. Which steps were begun is on the disk before the
// driver is called (csi_files.go), and is there until the driver has undone them: whatever comes between, the next
// attempt or the teardown goes on from there. A step that is repeated is one that drivers must be able to repeat.
//
// All calls for one volume that concern the node come one after another; publishing concerns one pod. What no pod has any
// more is taken from the node after that pod has let go of it, again and again if need be (csi_unstage.go).
type csiVolume struct {
	placed
	m *Mounter
}

const csiFolder = "kubernetes.io~csi"

func (m *Mounter) csiVolumes() kind { return csiVolume{csiFolder, m} }

func (c csiVolume) is(s *spec) bool {
	if c.m.CSI == nil { // without an API server
		return false
	}
	if s.pv != nil {
		return s.pv.Spec.CSI != nil
	}
	return s.own.CSI != nil
}

// path is where the driver publishes the volume; for a device, a link to that place.
func (csiVolume) path(s *spec, dir string) string {
	if s.block {
		return dir
	}
	return filepath.Join(dir, csiMount)
}

// ready reports whether the volume was published, and whether that is still mounted: after a reboot it is not.
func (c csiVolume) ready(path string) (bool, error) {
	if at, err := os.Readlink(path); err == nil { // a device
		listed, err := mount.Listed(at)
		return listed, err
	}
	data, err := readVolData(filepath.Dir(path))
	if err != nil || data[keyPublished] == "" {
		return false, nil //nolint:nilerr // what cannot be read is written anew
	}
	return mount.Listed(path)
}

// republishEvery is how often a volume is published again whose driver asks for that.
const republishEvery = time.Minute

func (c csiVolume) setUp(ctx context.Context, s *spec, path string) (time.Time, error) {
	if s.pv == nil {
		if there, err := c.ready(path); err != nil || there { // what it wants may take its time
			return time.Now(), err
		}
	}
	p, err := c.prepare(ctx, s, path)
	if err != nil {
		return time.Time{}, &failedAt{p.step("MountVolume.NewMounter initialization failed", "MapVolume.NewBlockVolumeMapper initialization failed"), err}
	}
	if err := p.begin(ctx); err != nil {
		return time.Time{}, err
	}
	failpoint.At("csi-begun")
	if err := p.attached(ctx); err != nil {
		return time.Time{}, err
	}
	if err := p.stage(ctx); err != nil {
		return time.Time{}, p.waits(&failedAt{p.step("MountVolume.MountDevice failed", "MapVolume.SetUpDevice failed"), err})
	}
	failpoint.At("csi-staged")
	if err := p.publish(ctx); err != nil {
		return time.Time{}, p.waits(err)
	}
	failpoint.At("csi-published")
	if s.claim != nil {
		if err := p.grow(ctx); err != nil {
			return time.Time{}, &failedAt{"MountVolume.Setup failed while expanding volume", err}
		}
	}
	if err := p.finish(); err != nil {
		return time.Time{}, err
	}
	return p.again(), nil
}

// again is when a volume has to be looked after next.
func (p *csiJob) again() time.Time {
	if p.driver != nil && ptr.Deref(p.driver.Spec.RequiresRepublish, false) {
		return time.Now().Add(republishEvery)
	}
	return time.Time{}
}

// renew looks after a volume that is published: it grows with its claim, and is published again if the driver wants.
func (c csiVolume) renew(ctx context.Context, s *spec, path string) (time.Time, error) {
	p, err := c.prepare(ctx, s, path)
	if err != nil {
		return time.Time{}, err
	}
	if s.claim != nil {
		if err := p.grow(ctx); err != nil {
			return time.Time{}, &Failure{Reason: "VolumeResizeFailed", err: fmt.Errorf("NodeExpandVolume failed for volume %q : %w", p.name, err)}
		}
	}
	if at := p.again(); at.IsZero() {
		return at, nil
	}
	if p.attaches() {
		if err := p.attachment(ctx); err != nil {
			return time.Time{}, err
		}
	}
	return p.again(), p.publish(ctx)
}

// csiJob is the setting up of one volume for one pod.
type csiJob struct {
	c *CSI
	m *Mounter
	*spec
	// driverName and handle say which volume it is; name is the PersistentVolume's or else the volume's in the pod.
	driverName, handle, name string
	driver                   *storagev1.CSIDriver // nil if there is no such object
	// target is where the driver publishes it.
	target string
	files  csiFiles
	// context is what the attacher passes on to the node.
	context map[string]string
	// mountsGroup: the driver gives the volume to the pod's group.
	mountsGroup bool
}

func (c csiVolume) prepare(ctx context.Context, s *spec, path string) (*csiJob, error) {
	p := &csiJob{c: c.m.CSI, m: c.m, spec: s, name: s.name, target: path}
	mode := storagev1.VolumeLifecycleEphemeral
	if s.pv != nil {
		mode = storagev1.VolumeLifecyclePersistent
		p.name, p.driverName, p.handle = s.pv.Name, s.pv.Spec.CSI.Driver, s.pv.Spec.CSI.VolumeHandle
		p.files = filesOf(c.m.Dirs, p.driverName, p.handle)
	} else {
		p.driverName, p.handle = s.own.CSI.Driver, ephemeralHandle(s.pod.UID, s.name)
	}
	if s.block {
		p.files = deviceFiles(c.m.Dirs, p.name)
		p.target = p.files.published(s.pod.UID)
	}
	var err error
	p.driver, err = p.c.Client.StorageV1().CSIDrivers().Get(ctx, p.driverName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		p.driver, err = nil, nil
	}
	if err != nil {
		return p, err
	}
	return p, lives(p.driver, p.driverName, mode)
}

// lives says why a driver has no volumes of this way of life.
func lives(d *storagev1.CSIDriver, name string, mode storagev1.VolumeLifecycleMode) error {
	if d == nil {
		if mode == storagev1.VolumeLifecyclePersistent {
			return nil
		}
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, name)
	}
	modes := d.Spec.VolumeLifecycleModes
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if slices.Contains(modes, mode) {
		return nil
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, name, modes)
}

// waits has the pod woken when a driver comes that is missing.
func (p *csiJob) waits(err error) error {
	if missing, ok := errors.AsType[*csi.NotRegisteredError](err); ok {
		p.m.waitFor(ofDriver(missing.Driver), p.pod.UID)
	}
	return err
}

func ofDriver(name string) string { return "driver/" + name }

// DriverCame wakes the pods that could not have a volume because a driver was not there, and lets it take back what it could not.
func (m *Mounter) DriverCame(driver string) {
	m.wakeOthers(ofDriver(driver))
	m.leftovers.wake()
}

// aloneWith runs f when no other call concerns the volume as the node has it.
func (m *Mounter) aloneWith(ctx context.Context, driver, handle string, f func() error) error {
	return m.calls.alone(ctx, "csi", string(attachments.VolumeName(driver, handle)), f)
}

// begin writes down what is about to be done.
func (p *csiJob) begin(ctx context.Context) error {
	data := volData{
		keySpecVolID: p.name, keyHandle: p.handle, keyDriver: p.driverName, keyNode: p.m.NodeName,
		keyLifecycle: string(storagev1.VolumeLifecycleEphemeral),
	}
	if p.pv == nil {
		dir := filepath.Dir(p.target)
		return data.with(dir, keyAsked).write(dir)
	}
	data[keyLifecycle] = string(storagev1.VolumeLifecyclePersistent)
	if p.attaches() {
		data[keyAttachment] = attachments.Name(p.driverName, p.handle, p.m.NodeName)
	}
	return p.m.aloneWith(ctx, p.driverName, p.handle, func() error {
		if err := data.with(p.files.data, keyStaged).write(p.files.data); err != nil {
			return err
		}
		if !p.block {
			dir := filepath.Dir(p.target)
			return data.with(dir, keyAsked).write(dir)
		}
		link := filepath.Join(p.m.Dirs.Devices(p.pod.UID), csiFolder, p.name)
		if have, err := os.Readlink(link); err == nil && have == p.target {
			return nil
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o750), removePlace(link)); err != nil {
			return err
		}
		return os.Symlink(p.target, link)
	})
}

// stage has the driver make the volume ready on the node, unless it is, or the driver has no such step.
func (p *csiJob) stage(ctx context.Context) error {
	if p.pv == nil {
		return nil
	}
	return p.m.aloneWith(ctx, p.driverName, p.handle, func() error {
		return p.call(ctx, "attacher.MountDevice failed to create newCsiDriverClient", func(ctx context.Context, c csipb.NodeClient) error {
			can, err := csi.Can(ctx, c)
			if err != nil {
				return err
			}
			p.mountsGroup = can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]
			if !can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
				p.files.staging = ""
				return nil
			}
			return p.stageBy(ctx, c, can)
		})
	})
}

func (p *csiJob) stageBy(ctx context.Context, c csipb.NodeClient, can csi.Abilities) error {
	data, err := readVolData(p.files.data)
	if err != nil {
		return err
	}
	listed, err := mount.Listed(p.files.staging)
	if err != nil {
		return err
	}
	if data[keyStaged] == bootID() && (listed || p.block) {
		return nil
	}
	secrets, err := p.secrets(ctx, p.pv.Spec.CSI.NodeStageSecretRef)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.files.staging, 0o750); err != nil {
		return err
	}
	_, err = c.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: p.handle, PublishContext: p.context, StagingTargetPath: p.files.staging, VolumeCapability: p.capability(can),
		Secrets: secrets, VolumeContext: p.pv.Spec.CSI.VolumeAttributes,
	})
	if err != nil && data[keyStaged] == "" && !listed && !mayGoOn(err) { // then there is nothing to take back, as upstream has it
		return errors.Join(err, removePlace(p.files.staging))
	}
	if err != nil {
		return err
	}
	data[keyStaged] = bootID()
	return data.write(p.files.data)
}

// mayGoOn reports whether a driver may still be at work, or may have done something, though it answered with an error; the rule
// is upstream's. What is no driver's answer leaves that open, too.
func mayGoOn(err error) bool {
	said, asked := status.FromError(err)
	if !asked {
		return true
	}
	switch said.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return true
	default:
		return false
	}
}

// publish has the driver give the volume to the pod.
func (p *csiJob) publish(ctx context.Context) error {
	err := p.call(ctx, "mounter.SetUpAt failed to get CSI client", func(ctx context.Context, c csipb.NodeClient) error {
		can, err := csi.Can(ctx, c)
		if err != nil {
			return err
		}
		p.mountsGroup = can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]
		if !can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			p.files.staging = ""
		}
		req, err := p.publishRequest(ctx, can)
		if err != nil {
			return err
		}
		if err := p.aboutToPublish(); err != nil {
			return err
		}
		_, err = c.NodePublishVolume(ctx, req)
		return err
	})
	if err != nil {
		return &failedAt{p.step("MountVolume.SetUp failed", "MapVolume.MapPodDevice failed"), err}
	}
	if _, err := os.Lstat(p.target); err != nil {
		return fmt.Errorf("driver %s says that it has published the volume, and there is nothing: %w", p.driverName, err)
	}
	return p.giveToGroup(ctx)
}

// aboutToPublish writes down that the driver is asked: a driver that never was, and may never come, undoes nothing.
func (p *csiJob) aboutToPublish() error {
	dir := filepath.Dir(p.target)
	if p.block { // then the target itself tells
		return os.MkdirAll(dir, 0o750)
	}
	data, err := readVolData(dir)
	if err != nil || data[keyAsked] != "" {
		return err
	}
	data[keyAsked] = "true"
	return data.write(dir)
}

// call calls the driver. A driver that is missing is told of as upstream does.
func (p *csiJob) call(ctx context.Context, missing string, f func(context.Context, csipb.NodeClient) error) error {
	err := p.c.Drivers.Call(ctx, p.driverName, f)
	if _, ok := errors.AsType[*csi.NotRegisteredError](err); ok {
		return fmt.Errorf("kubernetes.io/csi: %s: %w", missing, err)
	}
	return err
}

// giveToGroup lets the pod's group use the files of the volume, as the driver's policy has it.
func (p *csiJob) giveToGroup(ctx context.Context) error {
	group := fsGroup(p.pod)
	if group == nil || p.block || p.mountsGroup || p.readOnly || !p.wantsGroup() {
		return nil
	}
	root, err := os.Open(p.target)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	policy := ptr.Deref(p.pod.Spec.SecurityContext.FSGroupChangePolicy, v1.FSGroupChangeAlways)
	if err := safepath.GiveGroup(ctx, root, int(*group), policy == v1.FSGroupChangeOnRootMismatch); err != nil {
		return fmt.Errorf("applyFSGroup failed for vol %s: %w", p.handle, err)
	}
	return nil
}

// wantsGroup reports whether the driver's policy lets the kubelet change the group of the volume's files.
func (p *csiJob) wantsGroup() bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if p.driver != nil && p.driver.Spec.FSGroupPolicy != nil {
		policy = *p.driver.Spec.FSGroupPolicy
	}
	switch {
	case policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case p.fsType() == "":
		return false
	case p.pv == nil: // such a volume is one pod's
		return true
	}
	for _, m := range p.pv.Spec.AccessModes {
		if m == v1.ReadWriteOnce || m == v1.ReadWriteOncePod {
			return true
		}
	}
	return false
}

// finish writes down that all was done.
func (p *csiJob) finish() error {
	if p.block {
		return nil
	}
	data, err := readVolData(filepath.Dir(p.target))
	if err != nil {
		return err
	}
	data[keyPublished] = "true"
	return data.write(filepath.Dir(p.target))
}

// tearDown takes a volume from a pod. That no pod has it any more is the node's business: the pod does not wait for it.
func (c csiVolume) tearDown(ctx context.Context, dir string) error {
	if at, err := os.Readlink(dir); err == nil {
		return c.unmap(ctx, dir, at)
	}
	target := filepath.Join(dir, csiMount)
	data, err := readVolData(dir)
	if err != nil || c.m.CSI == nil { // nothing was begun; or the node is taken down, and its drivers are gone
		return errors.Join(mount.UnmountStack(target), removePlace(target), removeVolData(dir), removePlace(dir))
	}
	if data[keyAsked] != "" {
		if err := c.unpublish(ctx, data, target); err != nil {
			return err
		}
	}
	failpoint.At("csi-unpublished")
	if err := errors.Join(removePlace(target), removeVolData(dir), removePlace(dir)); err != nil {
		return err
	}
	if data[keyLifecycle] != string(storagev1.VolumeLifecycleEphemeral) {
		c.m.release(ctx, staged{driver: data[keyDriver], handle: data[keyHandle], files: filesOf(c.m.Dirs, data[keyDriver], data[keyHandle])})
	}
	return nil
}

// unmap is tearDown for a device: at is where it is published, link what the pod has.
func (c csiVolume) unmap(ctx context.Context, link, at string) error {
	files := deviceFiles(c.m.Dirs, filepath.Base(link))
	data, err := readVolData(files.data)
	if err != nil || c.m.CSI == nil {
		return errors.Join(mount.UnmountStack(at), removePlace(at), removePlace(link))
	}
	if _, err := os.Lstat(at); !errors.Is(err, os.ErrNotExist) { // it was published, or is about to be gone
		if err := c.unpublish(ctx, data, at); err != nil {
			return err
		}
	}
	if err := errors.Join(removePlace(at), removePlace(link)); err != nil {
		return err
	}
	c.m.release(ctx, staged{driver: data[keyDriver], handle: data[keyHandle], files: files, device: filepath.Base(link)})
	return nil
}

func (c csiVolume) unpublish(ctx context.Context, data volData, target string) error {
	err := c.m.CSI.Drivers.Call(ctx, data[keyDriver], func(ctx context.Context, n csipb.NodeClient) error {
		_, err := n.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: data[keyHandle], TargetPath: target})
		return err
	})
	if err = unlessUnknown(err, target); err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed for volume %s: %w", data[keySpecVolID], err)
	}
	return mount.UnmountStack(target) // should the driver have left anything there
}

// unlessUnknown returns no error if the driver does not know a volume, and the kernel has nothing mounted for it: then
// there is nothing to undo. A driver may never have got to what it was asked for, or have lost what it knew.
func unlessUnknown(err error, path string) error {
	if status.Code(err) != codes.NotFound {
		return err
	}
	listed, unlisted := mount.Listed(path)
	if unlisted != nil || listed {
		return errors.Join(err, unlisted)
	}
	return nil
}

// ephemeralHandle is what the driver calls a volume that a pod has by its own spec.
func ephemeralHandle(uid types.UID, name string) string { return "csi-" + sum(string(uid)+name) }
