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
	"crypto/rand"
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
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/disk"
)

const (
	// heartbeat is etcd's tick. A lone member has nobody to send heartbeats to, so ticks only drive
	// its (re-)election, which lead makes immediate.
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
	own    clientv3.KV // bypasses the gate
	space  *space
	gate   *gate
	end    *fatality
	door   *door
	// assembly is of an etcd that has other members; nil if it is alone.
	assembly *assembly
	steady   *steady

	renewed int64 // the revision of the last renewal; the gate lets only one in at a time
}

// openEmbedded opens (or creates) the etcd data below dir. If the folder is unreadable, corrupt or
// in use by another process, the error names it.
func openEmbedded(ctx context.Context, dir string, peers *Peers) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	end := newFatality(ctx)
	etcd, assembly, err := startEtcd(ctx, dir, peers, end)
	if err != nil {
		return nil, errors.Join(cannotOpen(dir, err), lock.Close())
	}
	if assembly != nil {
		go assembly.watch()
	}
	door := newDoor(end)
	client := newClient(ctx, etcd.Server, door)
	e := &embedded{etcd: etcd, lock: lock, client: client, own: client.KV, space: newSpace(MemberDir(dir)), end: end, door: door, assembly: assembly}
	e.gate, e.space.log.kept = e.newGate(), e.keepsLog
	if assembly != nil {
		if e.steady, err = newSteady(ctx, assembly, e.own); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	if err := e.space.log.dropBroken(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the leftovers of an interrupted write by etcd")
	}
	// The data may come from a snapshot of an etcd that had reached its quota. Here it has none, and
	// nobody else could end the alarm.
	if err := endQuotaAlarms(ctx, client, etcd.Server.Alarms()); err != nil {
		return nil, errors.Join(err, e.close())
	}
	if err := e.look().refusal; err != nil {
		klog.FromContext(ctx).Info("The cluster's data is short of space", "reason", err)
	}
	return e, nil
}

// ErrNoRoom means that etcd's data could not be opened because their disk was full: opening takes
// some room. It is not a sign of damage.
var ErrNoRoom = errors.New("its disk is full")

// cannotOpen returns an error that says what to do about data that cannot be opened. It does not
// advise to give up data that only need room, or that were not opened because the start was
// cancelled.
func cannotOpen(dir string, err error) error {
	if errors.Is(err, ErrRemoved) || errors.Is(err, ErrLost) {
		return err
	}
	if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("etcd cannot listen for the other servers: %w", err)
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("stopped while opening the etcd data in %s: %w", dir, err)
	}
	if room, lerr := disk.Look(dir); lerr == nil && room.Free < openingBytes {
		return fmt.Errorf("etcd data in %s cannot be opened while %w (%d MiB free); free some space on it (%w)", dir, ErrNoRoom, room.Free>>20, err)
	}
	return fmt.Errorf("etcd data in %s cannot be opened: %w; restore the folder from a backup, or remove it to start empty", dir, err)
}

// close stops the server once no call is in it any more. What was acknowledged is on disk already. A server that has failed, or
// fails meanwhile, cannot be waited for: its goroutines block each other, and stay until the
// process ends.
func (e *embedded) close() error {
	if e.assembly != nil {
		e.assembly.closing.Store(true)
	}
	e.door.close()
	err := e.client.Close() // ends watches
	if errors.Is(err, context.Canceled) {
		err = nil // what Close of a client without connections answers
	}
	e.door.await(e.end)
	switch reason := e.end.err(); {
	case errors.Is(reason, ErrRemoved): // it has stopped in good order
		e.etcd.Close()
	case reason == nil:
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
	if e.assembly != nil {
		err = errors.Join(err, e.assembly.serves.close())
	}
	// Closing alone does not unlock it: a child that is being forked has the file open, too.
	return errors.Join(err, unix.Flock(int(e.lock.Fd()), unix.LOCK_UN), e.lock.Close())
}

// keepsLog reports whether etcd may have released files of the log for a snapshot that there was no
// room for. Once a later snapshot exists, the files before it are outdated, but not before etcd has
// recorded that snapshot in its log, which it has done when it goes on to the next entry. The order
// of the reads matters: a snapshot that exists after etcd has gone on from it was either saved, or
// is the missed one.
func (e *embedded) keepsLog() bool {
	applied := e.etcd.Server.AppliedIndex()
	saved := e.space.snapshot()
	missed := e.end.missed.Load()
	return missed > 0 && (saved <= missed || applied <= saved)
}

// entries returns how many entries etcd has applied since its last snapshot. Once these are
// snapshotEvery, it makes a snapshot with the next entry.
func (e *embedded) entries() int {
	saved := e.space.snapshot()
	if missed := e.end.missed.Load(); missed > 0 && saved <= missed {
		return snapshotEvery
	}
	return int(e.etcd.Server.AppliedIndex() - saved)
}

// look finds out how much room there is. If the disk has room again, but etcd has given up making
// the next file of its log meanwhile, look asks for a restart.
func (e *embedded) look() outlook {
	if err := e.end.err(); err != nil {
		return outlook{refusal: unavailable(err)}
	}
	backend := e.etcd.Server.Backend()
	o := e.space.look(backend.Size(), backend.SizeInUse())
	if o.regained && e.space.log.stuck() {
		e.end.warn(errors.New("etcd had no space for its log while the disk was full"))
	}
	return o
}

// lockDir locks the folder for this process. etcd itself would wait for the lock for ever.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another process is using it; stop that process, or choose another data folder")
		}
		return nil, errors.Join(fmt.Errorf("etcd data in %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// starting lets only one server of this process start at a time, because replayed sees only the
// server that was started last.
var starting sync.Mutex

// startEtcd starts the server and waits until it leads or, if it has other members, until one of them does and this one votes.
// It returns an error for damage on which etcd would panic or exit.
func startEtcd(ctx context.Context, dir string, peers *Peers, end *fatality) (*embed.Etcd, *assembly, error) {
	etcd, serves, err := launch(ctx, dir, peers, end)
	if err != nil || serves == nil {
		return etcd, nil, err
	}
	a, err := newAssembly(etcd.Server, peers, serves, end)
	if err == nil {
		err = a.start(ctx)
	}
	if err != nil {
		etcd.Close()
		return nil, nil, errors.Join(err, serves.close())
	}
	return etcd, a, nil
}

// launch starts the server, and what serves its other members; nil if it can have none. Without others it leads when launch
// returns.
func launch(ctx context.Context, dir string, peers *Peers, end *fatality) (etcd *embed.Etcd, serves *peerServer, err error) {
	defer func() {
		if err != nil {
			err, serves = errors.Join(err, serves.close()), nil
		}
	}()
	starting.Lock()
	defer starting.Unlock()
	wal.SegmentSizeBytes = segmentBytes
	cfg, err := etcdConfig(dir, end)
	if err != nil {
		return nil, nil, err
	}
	others, err := withMembers(cfg, dir, peers)
	if err != nil {
		return nil, nil, err
	}
	if err := checkFiles(filepath.Join(cfg.Dir, "member")); err != nil {
		return nil, nil, err
	}
	if err := newSpace(cfg.Dir).forStart(); err != nil {
		return nil, nil, err
	}
	if others {
		if serves, err = listenForPeers(peers); err != nil {
			return nil, nil, err
		}
	}
	opened := make(chan *embed.Etcd, 1)
	go func() { // after a fatality it ends without a result
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
	select {
	case etcd = <-opened:
	case <-end.failed():
		return nil, serves, end.err()
	}
	if others {
		serves.serve(etcd.Server)
		if len(etcd.Server.Cluster().Members()) != 1 {
			return etcd, serves, nil
		}
	}
	return etcd, serves, lead(ctx, etcd.Server, end)
}

// MemberDir returns etcd's own data folder.
func MemberDir(dir string) string { return filepath.Join(dir, "member-data") }

// etcdConfig returns how the etcd below dir is started if it is alone.
func etcdConfig(dir string, end *fatality) (*embed.Config, error) {
	member, err := url.Parse(memberURL)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name = memberName
	cfg.Dir = MemberDir(dir)
	// No listeners. The advertised addresses are names that never resolve; etcd only requires that
	// there are some.
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = []url.URL{*member}, []url.URL{*member}
	cfg.InitialCluster = cfg.InitialClusterFromName(memberName)
	// Members of different clusters must not take each other for their own.
	cfg.InitialClusterToken = rand.Text()
	cfg.TickMs, cfg.ElectionMs = uint(heartbeat/time.Millisecond), uint(election/time.Millisecond)
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEvery, catchUpEntries
	// etcd's own quota would refuse even the deletions that make room, until somebody disarms its
	// alarm. The files of its log are removed by space.
	cfg.QuotaBackendBytes, cfg.MaxWalFiles = -1, 0
	cfg.BootstrapDefragThresholdMegabytes = defragAtMiB
	cfg.MaxRequestBytes = 3 << 20
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(end))
	return cfg, nil
}

// replayed reports whether raft knows that everything in its log is applied. An election before
// that makes it look through entries that etcd may have compacted already, and panic. The variable
// is etcd's own; the status is that of the server started last.
func replayed() bool {
	status, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	s, ok := status.Value().(raft.Status)
	return ok && s.GetCommit() > 0 && s.Applied >= s.GetCommit()
}

// lead makes the member its cluster's leader at once, with the message that an old leader sends
// when it hands over. Otherwise a restart would wait for the election timeout, which is long here
// so that an idle server does not tick.
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
		case <-server.StopNotify():
			if err := end.err(); err != nil {
				return err
			}
			return errors.New("etcd stopped while starting; its last messages in the log may say why")
		case <-end.failed():
			return end.err()
		case <-ctx.Done():
			return fmt.Errorf("etcd did not start: %w", ctx.Err())
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
