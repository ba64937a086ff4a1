package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/disks"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// Disks are volumes that the node has once, for all its pods: it finds the disk, mounts what is on it in a folder of its
// own, and binds that into the pods, or gives them the device itself.
//
// Who has the disk is written down before anything is done for him (diskRecord), and is crossed out when it is undone. When
// nobody is left, the disk is unmounted, and given up. Each step can be repeated, and all that is done about a disk is done
// by one at a time.
//
//	place ──▶ record ──▶ attached ──▶ found ──▶ mounted for the node ──▶ bound into the pod

// diskRecord is what the node knows of a disk that its pods have or are about to have.
type diskRecord struct {
	// Volumes are its names in the node's status, several if pods name different portals; none if nobody attaches it.
	Volumes []v1.UniqueVolumeName `json:",omitempty"`
	// Of what kind it is.
	ISCSI *disks.Target `json:",omitempty"`
	Fibre *disks.Fibre  `json:",omitempty"`
	Local string        `json:",omitempty"`
	// Sessions are the portals to which the node has logged in for its pods: they are left with the last of them.
	Sessions []string `json:",omitempty"`
	// Secret and Digest are by which secret they were made, and what it said.
	Secret, Digest string `json:",omitempty"`
	// Boot is that of the machine in which the disk was found, and the link to it was made; "" if it never was.
	Boot string `json:",omitempty"`
	// Places are the folders and links of the pods.
	Places []string
}

const (
	diskFile    = "disk.json"
	diskVersion = 1
)

// diskFiles are where the node has a disk.
type diskFiles struct{ dir string }

func (f diskFiles) record() string { return filepath.Join(f.dir, diskFile) }

// mount is where what is on it is mounted for the node.
func (f diskFiles) mount() string { return filepath.Join(f.dir, "globalmount") }

// device is a link to it, to which those of pods point.
func (f diskFiles) device() string { return filepath.Join(f.dir, "device") }

func (f diskFiles) read() (*diskRecord, error) {
	r := &diskRecord{}
	_, err := record.Read(f.record(), r)
	return r, err
}

func (f diskFiles) write(r *diskRecord) error {
	if err := os.MkdirAll(f.dir, 0o750); err != nil {
		return err
	}
	return record.Write(f.record(), diskVersion, r)
}

// remove removes what the node has of a disk that it has given up, the record last.
func (f diskFiles) remove() error {
	if err := errors.Join(removePlace(f.mount()), removePlace(f.device()), record.Sweep(f.dir)); err != nil {
		return err
	}
	return errors.Join(removePlace(f.record()), removePlace(f.dir))
}

// allDisks returns where the node has disks of a kind; "*" stands for all kinds.
func allDisks(dirs criconfig.Dirs, plugin string) ([]diskFiles, error) {
	all, err := filepath.Glob(filepath.Join(pluginRoot(dirs, plugin), "*", diskFile))
	var out []diskFiles
	for _, path := range all {
		out = append(out, diskFiles{filepath.Dir(path)})
	}
	return out, err
}

// eachDisk calls f for the disks of a kind that the node has, until it fails; "*" stands for all kinds.
func eachDisk(dirs criconfig.Dirs, plugin string, f func(diskFiles, *diskRecord) error) error {
	all, err := allDisks(dirs, plugin)
	if err != nil {
		return err
	}
	for _, files := range all {
		r, err := files.read()
		if errors.Is(err, fs.ErrNotExist) { // it has just been given up
			continue
		}
		if err == nil {
			err = f(files, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// disksInUse returns the disks that somebody attaches and that the node has, or is about to have.
func disksInUse(dirs criconfig.Dirs) (out []v1.UniqueVolumeName, err error) {
	err = eachDisk(dirs, "*", func(_ diskFiles, r *diskRecord) error {
		out = append(out, r.Volumes...)
		return nil
	})
	return out, err
}

// diskPlaces returns where pods have local volumes that are disks: what is on them is not on the node's own.
func diskPlaces(dirs criconfig.Dirs) (out []string, err error) {
	err = eachDisk(dirs, localPlugin, func(_ diskFiles, r *diskRecord) error {
		out = append(out, r.Places...)
		return nil
	})
	return out, err
}

// ofDisk stands for a pod's UID where a disk is meant.
const ofDisk types.UID = "disk"

// diskUse is what a pod wants with a disk.
type diskUse struct {
	*spec
	// plugin is the kind; id tells the disk from others of it.
	plugin, id string
	// volume is its name in the node's status; "" if nobody attaches it.
	volume v1.UniqueVolumeName
	// is describes the disk, in the first record of it.
	is       diskRecord
	readOnly bool
	fsType   string
	// connect finds the disk. It may write to the record, and must have saved it before it does what is to be undone.
	connect func(ctx context.Context, r *diskRecord, save func() error) (device string, err error)
}

// useDisk gives a disk to a pod, at dir.
func (m *Mounter) useDisk(ctx context.Context, dir string, u *diskUse) error {
	if there, err := diskReady(dir); err != nil || there {
		return err
	}
	files := diskFiles{filepath.Join(pluginRoot(m.Dirs, u.plugin), sum(u.id))}
	if err := u.makePlace(dir, files); err != nil {
		return err
	}
	failpoint.At("disk-placed")
	alone := func(f func() error) error { return m.calls.alone(ctx, ofDisk, files.dir, f) }
	if err := alone(func() error { return u.enter(dir, files) }); err != nil {
		return err
	}
	failpoint.At("disk-entered")
	if u.volume != "" && m.Attached != nil {
		if err := m.Attached.await(ctx, u.volume, u.name); err != nil {
			return err
		}
	}
	if err := alone(func() error { return u.find(ctx, files) }); err != nil {
		return &failedAt{u.step("MountVolume.WaitForAttach failed", "MapVolume.WaitForAttach failed"), err}
	}
	failpoint.At("disk-found")
	if u.block {
		return nil
	}
	if err := alone(func() error { return u.mountForNode(ctx, files, m.disks) }); err != nil {
		return &failedAt{"MountVolume.MountDevice failed", err}
	}
	failpoint.At("disk-mounted")
	if err := ctx.Err(); err != nil { // nobody waits for it any more
		return err
	}
	return u.bind(ctx, files, dir)
}

// makePlace makes what a teardown finds.
func (u *diskUse) makePlace(dir string, files diskFiles) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if !u.block {
		return ignoreExists(os.Mkdir(dir, 0o750))
	}
	if have, err := os.Readlink(dir); err == nil && have == files.device() {
		return nil
	}
	if err := removePlace(dir); err != nil {
		return err
	}
	return os.Symlink(files.device(), dir)
}

func ignoreExists(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// enter writes down that the pod is about to have the disk.
func (u *diskUse) enter(dir string, files diskFiles) error {
	r, err := files.read()
	if errors.Is(err, fs.ErrNotExist) {
		r, err = &u.is, nil
	}
	if err != nil {
		return err
	}
	named := u.volume == "" || slices.Contains(r.Volumes, u.volume)
	if named && slices.Contains(r.Places, dir) {
		return nil
	}
	if !named {
		r.Volumes = append(r.Volumes, u.volume)
	}
	r.Places = append(slices.DeleteFunc(r.prunedPlaces(), func(place string) bool { return place == dir }), dir)
	return files.write(r)
}

// prunedPlaces leaves out what is gone: a pod whose folder somebody has removed lets go of nothing.
func (r *diskRecord) prunedPlaces() []string {
	return slices.DeleteFunc(slices.Clone(r.Places), func(place string) bool {
		_, err := os.Lstat(place)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// find has the node find the disk.
func (u *diskUse) find(ctx context.Context, files diskFiles) error {
	r, err := files.read()
	if err != nil {
		return err
	}
	save := func() error { return files.write(r) }
	device, err := u.connect(ctx, r, save)
	if err != nil {
		return err
	}
	if err := isDisk(device); err != nil {
		return err
	}
	if have, err := os.Readlink(files.device()); err != nil || have != device {
		if err := errors.Join(removePlace(files.device()), os.Symlink(device, files.device())); err != nil {
			return err
		}
	}
	if r.Boot == bootID() {
		return nil
	}
	r.Boot = bootID()
	return save()
}

// isDisk says why a path is not a disk.
func isDisk(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("path %q does not exist", path)
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0 {
		return fmt.Errorf("path %q is not a block device", path)
	}
	return nil
}

// mountForNode mounts what is on the disk, as the first pod needs it.
func (u *diskUse) mountForNode(ctx context.Context, files diskFiles, node disks.Node) error {
	there, err := mount.Listed(files.mount())
	if err != nil {
		return err
	}
	if !there {
		device, err := os.Readlink(files.device())
		if err != nil {
			return err
		}
		if err := ignoreExists(os.Mkdir(files.mount(), 0o750)); err != nil {
			return err
		}
		if u.volume != "" { // it may be one of the machine's own, which whoever describes it need not know
			if err := node.Unused(ctx, filepath.Base(device)); err != nil {
				return err
			}
		}
		return disks.Mount(device, files.mount(), u.fsType, u.options())
	}
	var st unix.Statfs_t
	if err := unix.Statfs(files.mount(), &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY != 0 && !u.readOnly {
		return errors.New("the volume is mounted read-only on this node: another pod has it so, or the kernel has found errors on it")
	}
	return nil
}

func (u *diskUse) options() []string {
	var options []string
	if u.pv != nil {
		options = slices.Clone(u.pv.Spec.MountOptions)
	}
	if u.readOnly {
		options = append(options, "ro")
	}
	return options
}

// bind gives the pod what is mounted for the node: complete, or not at all.
func (u *diskUse) bind(ctx context.Context, files diskFiles, dir string) error {
	from, err := os.OpenFile(files.mount(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if u.readOnly {
		return mount.Attach(from, dir, unix.MOUNT_ATTR_RDONLY)
	}
	if group := fsGroup(u.pod); group != nil {
		policy := ptr.Deref(u.pod.Spec.SecurityContext.FSGroupChangePolicy, v1.FSGroupChangeAlways)
		if err := safepath.GiveGroup(ctx, from, int(*group), policy == v1.FSGroupChangeOnRootMismatch); err != nil {
			return err
		}
	}
	return mount.Attach(from, dir, 0)
}

// diskReady reports whether a pod has a disk. After a reboot a device may be another one's.
func diskReady(dir string) (bool, error) {
	link, err := os.Readlink(dir)
	if err != nil { // a folder, or nothing
		return mount.Listed(dir)
	}
	r, err := diskFiles{filepath.Dir(link)}.read()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && r.Boot == bootID() && isDisk(link) == nil, err
}

// leaveDisk takes a disk from a pod, and from the node if no other pod has it.
func (m *Mounter) leaveDisk(ctx context.Context, plugin, dir string) error {
	if _, err := os.Readlink(dir); err != nil {
		if err := mount.UnmountStack(dir); err != nil {
			return err
		}
	}
	failpoint.At("disk-unbound")
	all, err := allDisks(m.Dirs, plugin)
	if err != nil {
		return err
	}
	for _, files := range all {
		last := false
		err := m.calls.alone(ctx, ofDisk, files.dir, func() (err error) {
			last, err = crossOut(files, dir)
			return err
		})
		if err != nil {
			return fmt.Errorf("UnmountDevice failed for volume %q : %w", filepath.Base(dir), err)
		}
		if last {
			m.release(ctx, files)
		}
	}
	return removePlace(dir)
}

// crossOut undoes what a record says of one place, and reports whether it was the last one.
func crossOut(files diskFiles, dir string) (last bool, err error) {
	r, err := files.read()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !slices.Contains(r.Places, dir) {
		return false, err
	}
	r.Places = slices.DeleteFunc(r.prunedPlaces(), func(place string) bool { return place == dir })
	return len(r.Places) == 0, files.write(r)
}

func (f diskFiles) name() string { return f.dir }

func (f diskFiles) folder() string { return f.dir }

// leave takes a disk from the node.
func (f diskFiles) leave(ctx context.Context, m *Mounter) error {
	return m.calls.alone(ctx, ofDisk, f.dir, func() error {
		r, err := f.read()
		if errors.Is(err, fs.ErrNotExist) { // it is done
			return nil
		}
		if err != nil || len(r.prunedPlaces()) > 0 {
			return err
		}
		if err := m.giveUp(ctx, f, r); err != nil {
			return err
		}
		m.Attached.report()
		return nil
	})
}

// giveUp takes a disk from the node.
func (m *Mounter) giveUp(ctx context.Context, files diskFiles, r *diskRecord) error {
	if err := disks.Unmount(files.mount()); err != nil {
		return err
	}
	failpoint.At("disk-unmounted")
	if err := m.disconnect(ctx, files, r); err != nil {
		return err
	}
	failpoint.At("disk-left")
	return files.remove()
}

// GiveUpDisks takes all disks from a node on which no pod runs any more. Pods that are started again find theirs again.
func GiveUpDisks(ctx context.Context, dirs criconfig.Dirs) error {
	all, err := allDisks(dirs, "*")
	errs := []error{err}
	m := &Mounter{Dirs: dirs}
	for _, files := range all {
		r, err := files.read()
		if err == nil {
			err = m.giveUp(ctx, files, r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// disconnect gives up a disk that no pod has.
func (m *Mounter) disconnect(ctx context.Context, files diskFiles, r *diskRecord) error {
	switch {
	case r.ISCSI != nil:
		return m.leaveTarget(ctx, files, r)
	case r.Fibre != nil && r.Boot != "":
		return m.disks.LeaveFibre(ctx, r.Fibre)
	}
	return nil
}
