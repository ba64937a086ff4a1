// Package storage keeps the API server's objects: an etcd inside the process, or a
// client of an external cluster, behind one Backend that opens a watch-cached
// storage.Interface for each resource.
//
// The embedded etcd has no listener at all. Its client calls the server's functions
// directly, so nothing else on the machine can reach the data, and any number of
// instances run side by side. Every write is in the write-ahead log, and synced,
// before it is acknowledged.
package storage

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/disk"
)

const (
	// heartbeat is etcd's tick. A lone member has nobody to send heartbeats to, so
	// ticks only drive its (re-)election, which campaign makes immediate.
	heartbeat = 1000 * time.Millisecond
	election  = 10 * heartbeat
	// campaignEvery is how often a starting member asks to become leader, until it is.
	campaignEvery = 2 * time.Millisecond
	// startDeadline bounds the wait for the first leader.
	startDeadline = 60 * time.Second
	// snapshotEvery and catchUpEntries bound the raft log kept in memory: there is
	// no follower that could need older entries.
	snapshotEvery  = 2000
	catchUpEntries = 100
	quotaBytes     = 8 << 30
	defragAtMiB    = 128
	memberName     = "wherry"
	memberURL      = "http://embedded.invalid:2380"
)

// embedded is an etcd server in this process.
type embedded struct {
	etcd   *embed.Etcd
	lock   *os.File
	client *clientv3.Client
	own    clientv3.KV // past the gate
	space  *space
	gate   *gate
	end    *fatality

	renewed int64 // the revision of the last renewal; the gate lets in one at a time
}

// openEmbedded opens (or makes) the etcd data below dir. An unreadable or corrupt
// folder is one error that names it; a folder in use by another process likewise.
func openEmbedded(ctx context.Context, dir string) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	end := newFatality(ctx)
	etcd, err := startEtcd(ctx, dir, end)
	if err != nil {
		return nil, errors.Join(cannotOpen(dir, err), lock.Close())
	}
	client := v3client.New(etcd.Server)
	e := &embedded{etcd: etcd, lock: lock, client: client, own: client.KV, space: newSpace(MemberDir(dir)), end: end}
	e.gate, e.space.log.kept = e.newGate(), e.keepsLog
	if err := e.space.log.dropBroken(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove what etcd left of an interrupted write")
	}
	if err := e.look().refusal; err != nil {
		klog.FromContext(ctx).Info("The cluster's data has little room", "reason", err)
	}
	return e, nil
}

// ErrNoRoom says that etcd's data could not be opened while their disk was full: that takes
// some room, and is no sign of damage.
var ErrNoRoom = errors.New("its disk is full")

// cannotOpen says what to do about data that cannot be opened. Nobody is told to give up
// what only wants room, or was not opened because the start was given up.
func cannotOpen(dir string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("stopped while opening the etcd data in %s: %w", dir, err)
	}
	if room, lerr := disk.Look(dir); lerr == nil && room.Free < openingBytes {
		return fmt.Errorf("etcd data in %s cannot be opened while %w, with %d MiB free; make room on it (%w)", dir, ErrNoRoom, room.Free>>20, err)
	}
	return fmt.Errorf("etcd data in %s cannot be opened: %w; restore the folder from a backup, or remove it to start empty", dir, err)
}

// close ends the server; what was acknowledged is on disk already. One that has failed, or
// fails meanwhile, cannot be waited for: its goroutines hold each other up, and are left to the
// end of the process.
func (e *embedded) close() error {
	err := e.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // what Close of a client without connections answers
	}
	if e.end.err() == nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			e.etcd.Close()
		}()
		select {
		case <-closed:
		case <-e.end.failed():
		}
	}
	// Not by closing alone: a child that is being forked has the file open, too.
	return errors.Join(err, unix.Flock(int(e.lock.Fd()), unix.LOCK_UN), e.lock.Close())
}

// keepsLog reports whether files of the log may have been released by a snapshot that there was
// no room for. Once there is a later one, the files before it are outdated: as soon as etcd has
// written down that it is there, which it has when it goes on to the next entry. The order
// matters: a snapshot that is there after etcd has gone on from it was saved, or is the missed one.
func (e *embedded) keepsLog() bool {
	applied := e.etcd.Server.AppliedIndex()
	saved := e.space.snapshot()
	missed := e.end.missed.Load()
	return missed > 0 && (saved <= missed || applied <= saved)
}

// entries returns how many etcd has applied since it last made a snapshot, of the snapshotEvery
// after which it makes one with the next.
func (e *embedded) entries() int {
	saved := e.space.snapshot()
	if missed := e.end.missed.Load(); missed > 0 && saved <= missed {
		return snapshotEvery
	}
	return int(e.etcd.Server.AppliedIndex() - saved)
}

// look finds out how much room there is. When the disk has room again, and etcd has given
// up making the next file of its log meanwhile, another server is due.
func (e *embedded) look() outlook {
	if err := e.end.err(); err != nil {
		return outlook{refusal: unavailable(err)}
	}
	backend := e.etcd.Server.Backend()
	o := e.space.look(backend.Size(), backend.SizeInUse())
	if o.regained && e.space.log.stuck() {
		e.end.warn(errors.New("etcd found no room for its log while the disk was full"))
	}
	return o
}

// lockDir takes the folder for this process. etcd itself would wait for ever.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another process uses it; stop that one, or choose another data folder")
		}
		return nil, errors.Join(fmt.Errorf("etcd data in %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// starting lets one server of the process start at a time: what replayed looks at is
// that of the last one.
var starting sync.Mutex

// startEtcd starts the server and waits until it leads. Damage that etcd answers with a
// panic or by exiting is an error here.
func startEtcd(ctx context.Context, dir string, end *fatality) (*embed.Etcd, error) {
	starting.Lock()
	defer starting.Unlock()
	wal.SegmentSizeBytes = segmentBytes
	cfg, err := etcdConfig(dir, end)
	if err != nil {
		return nil, err
	}
	if err := checkFiles(filepath.Join(cfg.Dir, "member")); err != nil {
		return nil, err
	}
	if err := newSpace(cfg.Dir).forStart(); err != nil {
		return nil, err
	}
	opened := make(chan *embed.Etcd, 1)
	go func() { // ends without a result after a fatality
		defer func() {
			if r := recover(); r != nil {
				end.fail(fmt.Errorf("%v", r))
			}
		}()
		etcd, err := embed.StartEtcd(cfg)
		if err != nil {
			end.fail(err)
			return
		}
		end.serves(etcd.Server)
		opened <- etcd
	}()
	var etcd *embed.Etcd
	select {
	case etcd = <-opened:
	case <-end.failed():
		return nil, end.err()
	}
	if err := lead(ctx, etcd.Server, end); err != nil {
		return nil, err
	}
	return etcd, nil
}

// MemberDir is etcd's own data folder.
func MemberDir(dir string) string { return filepath.Join(dir, "member-data") }

func etcdConfig(dir string, end *fatality) (*embed.Config, error) {
	member, err := url.Parse(memberURL)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name = memberName
	cfg.Dir = MemberDir(dir)
	// No listeners. The advertised addresses are names that never resolve; etcd
	// only wants them to be there.
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = []url.URL{*member}, []url.URL{*member}
	cfg.InitialCluster = cfg.InitialClusterFromName(memberName)
	cfg.TickMs, cfg.ElectionMs = uint(heartbeat/time.Millisecond), uint(election/time.Millisecond)
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEvery, catchUpEntries
	// Its own quota would refuse even what gets one out, until somebody takes its alarm
	// back; and files of its log are space's to remove.
	cfg.QuotaBackendBytes, cfg.MaxWalFiles = -1, 0
	cfg.BootstrapDefragThresholdMegabytes = defragAtMiB
	cfg.MaxRequestBytes = 3 << 20
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(end))
	return cfg, nil
}

// replayed tells whether raft knows everything in its log as applied. An election
// before that makes it look through entries that etcd may have compacted already,
// and panic. The variable is etcd's own; the status is that of the server started last.
func replayed() bool {
	status, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	s, ok := status.Value().(raft.Status)
	return ok && s.GetCommit() > 0 && s.Applied >= s.GetCommit()
}

// lead makes the member its cluster's leader at once, by the message that an old
// leader sends when it hands over. Otherwise a restart waits for the election
// timeout, which is long here so that an idle server does not tick.
func lead(ctx context.Context, server *etcdserver.EtcdServer, end *fatality) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	tick := time.NewTicker(campaignEvery)
	defer tick.Stop()
	self := uint64(server.MemberID())
	kind := raftpb.MsgTimeoutNow
	for {
		select {
		case <-server.ReadyNotify():
			return nil
		case err := <-server.StopNotify():
			return fmt.Errorf("etcd stopped while starting: %v", err)
		case <-end.failed():
			return end.err()
		case <-ctx.Done():
			return fmt.Errorf("etcd has not started: %w", ctx.Err())
		case <-tick.C:
		}
		if server.Leader() != 0 || !replayed() {
			continue
		}
		if err := server.Process(ctx, &raftpb.Message{Type: &kind, To: &self, From: &self}); err != nil {
			return fmt.Errorf("etcd: become leader: %w", err)
		}
	}
}
