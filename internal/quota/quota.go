// Package quota limits how much directories may hold, by the project quotas of ext4 and XFS.
//
// A directory gets a project: a number that everything below it inherits, and that the kernel counts and limits. The
// number is on the directory itself, and the limit is in the file system; nothing else is kept.
//
// Who has CAP_SYS_RESOURCE, as privileged containers do, is not limited, and a process that is root in the machine's own
// user namespace can give its files another number. Ordinary containers that do neither are held to it.
package quota

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNone says that a file system has no project quotas, or does not enforce them.
var ErrNone = errors.New("the file system does not enforce project quotas")

// firstProject is the lowest number that is given: those that people give by hand are small.
const firstProject = 1 << 20

// Of linux/fs.h and linux/quota.h.
const (
	getXattr     = 0x801c581f // FS_IOC_FSGETXATTR
	setXattr     = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit      = 0x200      // FS_XFLAG_PROJINHERIT
	getQuota     = 0x800007   // Q_GETQUOTA
	setQuota     = 0x800008   // Q_SETQUOTA
	getState     = 0x5805     // Q_XGETQSTAT
	ofProjects   = 2          // PRJQUOTA
	blockLimits  = 1          // QIF_BLIMITS
	blockSize    = 1024       // QIF_DQBLKSIZE
	isEnforced   = 1 << 5     // FS_QUOTA_PDQ_ENFD
	stateFlagsAt = 2          // where struct fs_quota_stat has its flags
)

// xattr is struct fsxattr.
type xattr struct {
	Flags, ExtentSize, Extents, Project, CowExtentSize uint32
	_                                                  [8]byte
}

// block is struct if_dqblk.
type block struct {
	HardLimit, SoftLimit, Space, InodeHardLimit, InodeSoftLimit, Inodes, BlockTime, InodeTime uint64
	Valid                                                                                     uint32
	_                                                                                         [4]byte
}

// Enforced reports whether the file system of an open directory limits what projects hold.
func Enforced(dir *os.File) (bool, error) {
	var state [256]byte
	err := control(dir, getState, 0, unsafe.Pointer(&state[0]))
	if unavailable(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("project quotas of %s: %w", dir.Name(), err)
	}
	return *(*uint16)(unsafe.Pointer(&state[stateFlagsAt]))&isEnforced != 0, nil
}

// unavailable reports whether an error says that there are no quotas, or that the kernel cannot be asked.
func unavailable(err error) bool {
	for _, e := range []error{unix.ENOSYS, unix.ESRCH, unix.ENOTSUP, unix.EINVAL, unix.ENOTTY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Limit gives an open directory a project of its own, unless it has one, and limits what it may hold, in bytes. Only what
// is made below it from then on counts: it has to be empty. The error is ErrNone if the file system enforces no limits.
func Limit(dir *os.File, bytes uint64) error {
	if on, err := Enforced(dir); err != nil || !on {
		return errors.Join(err, ErrNone)
	}
	is, err := read(dir)
	if err != nil {
		return err
	}
	project := is.Project
	if project < firstProject {
		if project, err = choose(dir); err != nil {
			return err
		}
	}
	if err := setLimit(dir, project, bytes); err != nil {
		return err
	}
	if is.Project == project && is.Flags&inherit != 0 {
		return nil
	}
	is.Project, is.Flags = project, is.Flags|inherit
	if err := ioctl(dir, setXattr, unsafe.Pointer(&is)); err != nil {
		return fmt.Errorf("give %s the project %d: %w", dir.Name(), project, err)
	}
	return nil
}

// Release removes the limit of an open directory that is about to be removed, if it has one.
func Release(dir *os.File) error {
	project, err := Project(dir)
	if err != nil || project == 0 {
		return err
	}
	if on, err := Enforced(dir); err != nil || !on {
		return err
	}
	return setLimit(dir, project, 0)
}

// Project returns the project that an open directory was given, 0 if it was given none.
func Project(dir *os.File) (uint32, error) {
	is, err := read(dir)
	if err != nil || is.Project < firstProject {
		return 0, err
	}
	return is.Project, nil
}

// read returns the attributes of a directory; those of a file system that has none are empty.
func read(dir *os.File) (is xattr, err error) {
	if err := ioctl(dir, getXattr, unsafe.Pointer(&is)); err != nil && !unavailable(err) {
		return is, fmt.Errorf("project of %s: %w", dir.Name(), err)
	}
	return is, nil
}

// choose returns a number that nothing in the file system has. It follows from the directory's inode: whoever is
// interrupted and begins again chooses the same.
func choose(dir *os.File) (uint32, error) {
	info, err := dir.Stat()
	if err != nil {
		return 0, err
	}
	for id := info.Sys().(*syscall.Stat_t).Ino; ; id++ {
		project := uint32(firstProject + id%(1<<31-firstProject))
		is, err := quotaOf(dir, project)
		if err != nil {
			return 0, err
		}
		if is.Inodes == 0 {
			return project, nil
		}
	}
}

func quotaOf(dir *os.File, project uint32) (is block, err error) {
	if err := control(dir, getQuota, project, unsafe.Pointer(&is)); err != nil && !errors.Is(err, unix.ENOENT) {
		return is, fmt.Errorf("quota of project %d: %w", project, err)
	}
	return is, nil
}

func setLimit(dir *os.File, project uint32, bytes uint64) error {
	blocks := (bytes + blockSize - 1) / blockSize
	next := block{HardLimit: blocks, SoftLimit: blocks, Valid: blockLimits}
	if err := control(dir, setQuota, project, unsafe.Pointer(&next)); err != nil {
		return fmt.Errorf("limit project %d of %s to %d bytes: %w", project, dir.Name(), bytes, err)
	}
	return nil
}

// control calls quotactl_fd(2).
func control(f *os.File, cmd, id uint32, arg unsafe.Pointer) error {
	return call(f, func(fd uintptr) unix.Errno {
		_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, fd, uintptr(cmd<<8|ofProjects), uintptr(id), uintptr(arg), 0, 0)
		return e
	})
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	return call(f, func(fd uintptr) unix.Errno {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg))
		return e
	})
}

// call calls the kernel with a file's descriptor.
func call(f *os.File, do func(fd uintptr) unix.Errno) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var e unix.Errno
	if err := conn.Control(func(fd uintptr) { e = do(fd) }); err != nil {
		return err
	}
	if e != 0 {
		return e
	}
	return nil
}
