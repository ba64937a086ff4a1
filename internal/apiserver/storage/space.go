package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/disk"
)

const (
	// refuseBelow is the free space below which nothing new is accepted. What is still allowed then
	// (deletions, statuses, leases) fits into what etcd's files hold already.
	refuseBelow = 48 << 20
	// databaseAhead is how much of the disk the database holds beyond its end: twice what is
	// written between two renewals, and as much again for the growth of many small objects.
	databaseAhead = 48 << 20
	// reserveBytes is the size of a file that is given back when the disk is full: half of it at
	// once, for the records of others that live on the disk, and half of it step by step, for the
	// log.
	reserveBytes = 32 << 20
	reserveStep  = 4 << 20
	// reserveLeast is how much of the reserve a start on a full disk holds before anything else,
	// for snapshots: without them no write is permitted.
	reserveLeast = 2 * reserveStep
	// snapshotBytes is more than a snapshot takes, which holds only the members of the cluster.
	snapshotBytes = 1 << 20
	// openingBytes is the most that opening the data takes: a copy of the end of the log, which a
	// full disk may have cut off, and the next file.
	openingBytes = 2*segmentBytes + 8<<20
	// refuseInodes is the same limit for inodes: the log's next files and the snapshots need some.
	refuseInodes = 64
	// quotaAt is how much of quotaBytes may be in use before nothing new is accepted.
	quotaAt = quotaBytes / 10 * 9
	// statusBytes is more than the node almost ever writes at a time.
	statusBytes = 64 << 10
	// An update may make an object grow by growthMost at most, and by at most a thousandth of what
	// is left of the first half that the database holds ahead: so nobody gets to the other half,
	// which is for what the node writes.
	growthMost  = 16 << 10
	growthShare = 1024
	// While there is more room than plenty and everything is held, the disk is looked at after lookAgain at the earliest, and not
	// for each write: what is written meanwhile fits into what is held, even if the disk fills up at once.
	plenty    = 1 << 30
	lookAgain = 5 * time.Millisecond
)

// ReasonInsufficientStorage is the reason of requests refused for lack of room, with status 507.
const ReasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

// space watches over the room of the embedded etcd's files.
type space struct {
	dir      string // etcd's data
	database string
	log      logFiles
	reserve  disk.Reserve

	mu    sync.Mutex
	full  bool      // as of the last look
	held  int64     // the end of what the database holds
	short bool      // the log does not hold all the room that it should
	fine  time.Time // until then there is plenty
}

func newSpace(member string) *space {
	dir := filepath.Dir(member)
	return &space{
		dir:      dir,
		short:    true, // when etcd started, it cut off what was held
		database: filepath.Join(member, "member", "snap", "db"),
		log:      logFiles{dir: filepath.Join(member, "member", "wal"), spare: filepath.Join(dir, "log-spare")},
		reserve:  disk.Reserve{Path: filepath.Join(dir, "reserve"), Size: reserveBytes},
	}
}

// outlook is what look finds out about the room.
type outlook struct {
	refusal  error // why nothing new can be accepted, or nil
	growth   int64 // by how much an object may grow in an update that is accepted nevertheless
	within   int64 // unused bytes within the database
	behind   int64 // bytes held for the database behind its end
	short    bool  // there may be no room behind the end of the log
	regained bool  // there is room again after there was none
}

// look finds out how much room there is, and holds what etcd's files need of it. size and inUse are
// the database's.
func (s *space) look(size, inUse int64) outlook {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.fine) && s.held-size >= databaseAhead/2 && inUse <= quotaAt {
		return s.outlookLocked(size, inUse)
	}
	s.fine = time.Time{}
	room, err := disk.Look(s.dir)
	if err != nil {
		return outlook{refusal: apierrors.NewInternalError(err)}
	}
	full := room.Free < refuseBelow || s.full && room.Free < refuseBelow+reserveBytes ||
		room.Inodes > 0 && (room.FreeInodes < refuseInodes || s.full && room.FreeInodes < 2*refuseInodes)
	var refusal error
	switch {
	case full:
		refusal = insufficient("the disk of the cluster's data is full: %s free on %s, and new data is refused below %d MiB or %d inodes; "+
			"deletions still work: delete what is not needed, or free some space", free(room), s.dir, refuseBelow>>20, refuseInodes)
	case inUse > quotaAt:
		refusal = insufficient("the cluster's data has grown to %d MiB, and new data is refused above %d MiB; "+
			"deletions still work: delete what is not needed, and run wherry etcd compact", inUse>>20, quotaAt>>20)
	}
	regained := s.full && !full
	if s.full != full {
		s.say(room, full)
	}
	s.full = full
	if err := s.keepLocked(room, size); err != nil {
		klog.ErrorS(err, "Cannot reserve disk space for the cluster's data", "dir", s.dir)
	} else if refusal == nil && !s.short && room.Free > plenty && (room.Inodes == 0 || room.FreeInodes > 10*refuseInodes) {
		s.fine = now.Add(lookAgain)
	}
	o := s.outlookLocked(size, inUse)
	o.refusal, o.regained = refusal, regained
	return o
}

// outlookLocked returns what follows from the files' sizes.
func (s *space) outlookLocked(size, inUse int64) outlook {
	return outlook{
		within: size - inUse, behind: max(s.held-size, 0), short: s.short,
		growth: growth(min(max(s.held, size), quotaBytes) - inUse),
	}
}

// takes reports whether the log and the database have room for a write of size bytes and for all
// others that may be in flight. An object needs contiguous pages, and the free ones within the
// database are scattered.
func (o outlook) takes(size int64) bool {
	need := int64(1 << 20)
	if size > statusBytes {
		need = inFlightBytes + 2<<20
	}
	return !o.short && (o.behind >= need || o.within >= 4*need)
}

// growth returns by how much an update may make an object grow when so many bytes are left.
func growth(left int64) int64 {
	return min(growthMost, max(0, left-databaseAhead/2)/growthShare)
}

// keepLocked holds what etcd's files will need. When the disk is full it gives half of the reserve
// back, and takes it again once there is room for twice as much: the refusals end between the two,
// so that giving back the reserve does not itself end them.
func (s *space) keepLocked(room disk.Room, size int64) error {
	var err error
	spend := func(n uint64) bool { // leaves enough free for the disk not to count as full
		if s.full || room.Free < refuseBelow+n {
			return false
		}
		room.Free -= n
		return true
	}
	if s.held == 0 && s.full {
		return s.keepAtStart(size)
	}
	switch {
	case !s.log.ready() && (s.full || spend(logBytes)):
		err = s.keepLog()
	case s.short && (s.full || spend(3*behindBytes)):
		err = s.holdBehind()
	}
	if s.held-size < databaseAhead/4*3 && spend(databaseAhead) {
		err = errors.Join(err, s.holdAhead(size))
	}
	switch {
	case s.full:
		return errors.Join(err, s.reserve.GiveBackTo(reserveBytes/2))
	case spend(2 * reserveBytes):
		return errors.Join(err, s.reserve.Hold())
	}
	return err
}

// keepAtStart holds what it can on a full disk: first the room without which etcd fails, then the
// room without which no write is permitted.
func (s *space) keepAtStart(size int64) error {
	err := s.holdBehind()
	err = errors.Join(err, disk.Reserve{Path: s.reserve.Path, Size: reserveLeast}.Hold(), s.holdAhead(size))
	if !s.log.ready() {
		err = errors.Join(err, s.keepLog())
	}
	return err
}

// holdBehind allocates blocks behind the end of the log's files, from the reserve if need be.
func (s *space) holdBehind() error {
	err := s.fromReserve(s.log.behind)
	s.short = err != nil
	return err
}

// holdAhead allocates blocks behind the database's end; bbolt still makes the file longer as it
// always does. On a full disk it takes as much as it can get.
func (s *space) holdAhead(size int64) error {
	var err error
	for ahead := int64(databaseAhead); ahead >= databaseAhead/8; ahead /= 2 {
		if err = holdTo(s.database, size+ahead); err == nil {
			s.held = size + ahead
			return nil
		}
	}
	s.held = size
	return err
}

// keepLog provides the next file of the log. While the disk is full, it takes a file that etcd has
// released; if there is none yet, the next snapshot will release one.
func (s *space) keepLog() error {
	err := s.log.place(func(path string) error {
		if s.full {
			if err := s.log.reuse(path); !errors.Is(err, errNoneReleased) {
				return err
			}
		}
		return create(path)
	})
	if s.full && isNoRoom(err) {
		return nil
	}
	err = errors.Join(err, s.holdBehind())
	if !s.full {
		err = errors.Join(err, s.log.purge())
	}
	return err
}

// fromReserve gives the reserve back, step by step, until f finds room. Another process that fills
// the disk may take that room first.
func (s *space) fromReserve(f func() error) error {
	for left := int64(reserveBytes) - reserveStep; ; left -= reserveStep {
		err := f()
		if !isNoRoom(err) || left < 0 {
			return err
		}
		if err := s.reserve.GiveBackTo(left); err != nil {
			return err
		}
	}
}

// forget is called when the database is another file, behind whose end nothing is held yet.
func (s *space) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = 0
}

// forSnapshot holds the room for etcd's next snapshot until just before it is made, so that a
// process that fills the disk does not get it.
func (s *space) forSnapshot() (giveBack func() error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := disk.Reserve{Path: filepath.Join(s.dir, "snapshot-room"), Size: snapshotBytes}
	return r.GiveBackNow, s.fromReserve(r.Hold)
}

// snapshot returns the index of etcd's last snapshot.
func (s *space) snapshot() (index uint64) {
	files, err := snapshots(filepath.Dir(s.database))
	if err != nil || len(files) == 0 {
		return 0
	}
	index, _ = snapshotIndex(slices.Max(files)) // 0 if the file is not etcd's: then every write needs a renewal
	return index
}

const snapshotSuffix = ".snap"

func snapshots(dir string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, "*-*"+snapshotSuffix))
}

// snapshotIndex returns the index of a snapshot from its file name, TERM-INDEX.snap.
func snapshotIndex(path string) (index uint64, ok bool) {
	name, ok := strings.CutSuffix(filepath.Base(path), snapshotSuffix)
	_, last, _ := strings.Cut(name, "-")
	index, err := strconv.ParseUint(last, 16, 64)
	return index, ok && err == nil
}

// newestSnapshot returns the index and the term of the newest snapshot; of none if there is no file, or it has another name.
func newestSnapshot(dir string) *walpb.Snapshot {
	files, err := snapshots(dir)
	if err != nil || len(files) == 0 {
		return nil
	}
	newest := slices.Max(files)
	index, ok := snapshotIndex(newest)
	first, _, _ := strings.Cut(filepath.Base(newest), "-")
	term, err := strconv.ParseUint(first, 16, 64)
	if !ok || err != nil {
		return nil
	}
	return &walpb.Snapshot{Index: &index, Term: &term}
}

// dropUnrecorded removes snapshots later than the last one that the log records: etcd was killed
// before it recorded them, and does not know them.
func dropUnrecorded(dir string, last uint64) error {
	files, err := snapshots(dir)
	for _, path := range files {
		if index, ok := snapshotIndex(path); ok && index > last {
			err = errors.Join(err, remove(path))
		}
	}
	return err
}

// isNoRoom reports whether something failed because the disk, or a quota on it, is used up.
func isNoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// free returns how much room there is, in MiB, and in inodes where these are short.
func free(room disk.Room) string {
	if room.Inodes > 0 && room.FreeInodes < refuseInodes {
		return fmt.Sprintf("%d MiB and %d inodes", room.Free>>20, room.FreeInodes)
	}
	return fmt.Sprintf("%d MiB", room.Free>>20)
}

func (s *space) say(room disk.Room, full bool) {
	if full {
		klog.ErrorS(nil, "The disk of the cluster's data is full: only deletions, status updates and leases are accepted", "dir", s.dir, "free", free(room))
		return
	}
	klog.InfoS("The disk of the cluster's data has space again", "dir", s.dir, "free", free(room))
}

// forStart gives back what is held, one part after the other, until there is room to start in: etcd
// allocates the room behind the log's last entry again.
func (s *space) forStart() error {
	if err := s.log.dropHalfMade(); err != nil {
		return err
	}
	for _, giveBack := range []func() error{s.reserve.GiveBack, s.log.dropSpare, s.dropAhead} {
		room, err := disk.Look(s.dir)
		if err != nil || room.Free >= 2*segmentBytes {
			return err
		}
		if err := giveBack(); err != nil {
			return err
		}
	}
	return nil
}

// dropAhead gives back what the database holds behind its end.
func (s *space) dropAhead() error {
	info, err := os.Stat(s.database)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Truncate(s.database, info.Size())
}

func insufficient(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage,
		Reason: ReasonInsufficientStorage, Message: fmt.Sprintf(format, args...),
	}}
}
