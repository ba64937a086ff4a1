package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

const (
	// inFlightBytes limits the writes in flight while there is little room; a larger object is
	// written alone. It is more than the largest request.
	inFlightBytes = 4 << 20
	// After renewAfter bytes of writes, what was outdated before them should give its room back;
	// after renewBy bytes it must have. Together with the writes in flight renewBy is less than a
	// file of the log, so when the log begins a new file, the one after it is there already.
	renewAfter = 4 << 20
	renewBy    = 9 << 20
	// leastWrite is what even a small write takes: pages of the database. It also limits the number
	// of writes in flight.
	leastWrite = 8 << 10
	// retryAfter is how long writes that need a renewal are refused after one that did not help
	// them: each renewal takes some of the log, and blocks all writers.
	retryAfter = time.Second
)

// gate lets writes to the database through. While there is little room, it limits the writes in
// flight to the room behind the end of the log, and after every few MiB it makes etcd give back the
// room of what is outdated. So the writes that a full disk permits can go on without end.
type gate struct {
	look func() outlook
	// renew gives room back; with all, also that of revisions outdated since the last renewal.
	renew    func(ctx context.Context, all bool) error
	inFlight *semaphore.Weighted
	spent    atomic.Int64 // bytes written since room became scarce, or since the last renewal

	// Of the last renewal that left a write without room. Guarded by holding all of inFlight.
	failed  time.Time
	refusal error
}

func (e *embedded) newGate() *gate {
	return &gate{look: e.look, renew: e.renew, inFlight: semaphore.NewWeighted(inFlightBytes)}
}

// enter waits until size bytes may be written. The caller calls leave after the write.
func (g *gate) enter(ctx context.Context, size int64) (leave func(), err error) {
	size = max(size, leastWrite)
	if g.look().refusal == nil { // everything that etcd will need is held
		g.spent.Store(0)
		return func() {}, nil
	}
	weight := min(size, inFlightBytes)
	if err := g.inFlight.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	leave = func() { g.inFlight.Release(weight) }
	g.spent.Add(size)
	if !g.due(size) {
		return leave, nil
	}
	// A renewal needs to be alone: no other write may be in flight.
	leave()
	if err := g.inFlight.Acquire(ctx, inFlightBytes); err != nil {
		return nil, err
	}
	leave = func() { g.inFlight.Release(inFlightBytes) }
	if err := g.turn(ctx, size); err != nil {
		g.spent.Add(-size) // the write is not made
		leave()
		return nil, err
	}
	return leave, nil
}

// due reports whether room should be given back before a write of size bytes.
func (g *gate) due(size int64) bool {
	return g.spent.Load() >= renewAfter || !g.look().takes(size)
}

// turn renews for a write of size bytes that is alone. It ignores a failed renewal as long as the
// write can go on without one.
func (g *gate) turn(ctx context.Context, size int64) error {
	if !g.due(size) { // another write has renewed
		g.spent.Add(size)
		return nil
	}
	if g.wanting(size) && time.Since(g.failed) < retryAfter {
		return g.refusal
	}
	err := g.renew(ctx, !g.look().takes(size))
	if err == nil {
		g.spent.Store(size)
	}
	if !g.wanting(size) {
		return nil // if the renewal failed, the next write tries again
	}
	if !g.look().takes(size) {
		err = errors.Join(err, insufficient("the disk of the cluster's data is full, and there is no space for this write: free some space"))
	}
	g.failed, g.refusal = time.Now(), err
	return err
}

// wanting reports whether a write cannot go on without a renewal.
func (g *gate) wanting(size int64) bool {
	return g.spent.Load() >= renewBy || !g.look().takes(size)
}

// renew makes etcd give back the room of what is outdated: of its log, by a snapshot, and of old
// revisions in the database, by a compaction up to the last renewal. Watchers have seen everything
// up to there, and need the previous value for events after it. etcd makes a snapshot after a fixed
// number of entries, whatever their size, so renew adds as many entries that change nothing. The
// caller's context does not cancel it: half a renewal uses up room and gives none back.
func (e *embedded) renew(ctx context.Context, all bool) error {
	return whileAlive(context.WithoutCancel(ctx), e.door, func(ctx context.Context) error { return e.turnOver(ctx, all) })
}

func (e *embedded) turnOver(ctx context.Context, all bool) error {
	if e.look().short || e.space.log.ends() { // etcd itself would stop if it reached the end
		return noSnapshot(errors.New("there is no space beyond the log's current file"))
	}
	giveBack, err := e.space.forSnapshot()
	if err != nil {
		return noSnapshot(err)
	}
	if n := snapshotEvery - idleMoment - e.entries(); n > 0 { // the part that takes long
		if err := e.idle(ctx, n); err != nil {
			return errors.Join(err, giveBack())
		}
	}
	if err := giveBack(); err != nil {
		return err
	}
	if err := e.idle(ctx, min(max(1, snapshotEvery+1-e.entries()), 2*idleMoment)); err != nil {
		return err
	}
	// etcd answers before the snapshot is made, but goes on to the next entry only after it.
	now, err := idle(ctx, e.own)
	if err != nil {
		return err
	}
	if e.keepsLog() {
		return noSnapshot(errors.New("the space reserved for it is gone"))
	}
	e.look() // makes the log's next file from what etcd has released
	to := e.renewed
	e.renewed = now
	if all {
		to = now // slow watchers have to list again
	}
	if to == 0 || to == now && !all {
		return nil
	}
	_, err = e.own.Compact(ctx, to, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) { // the periodic compaction was faster
		return nil
	}
	return err
}

func noSnapshot(err error) error {
	return insufficient("the disk of the cluster's data is full, and there is no space for a snapshot: free some space (%v)", err)
}

const (
	idleMoment = 100 // entries: some milliseconds
	idleAtOnce = 500
)

// idle adds n entries to the log.
func (e *embedded) idle(ctx context.Context, n int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(idleAtOnce)
	for range n {
		g.Go(func() error {
			_, err := idle(ctx, e.own)
			return err
		})
	}
	return g.Wait()
}

// idle adds an entry to the log that changes nothing, because no key ever has that version. It
// returns the present revision.
func idle(ctx context.Context, kv clientv3.KV) (revision int64, err error) {
	const key = prefix + "/idle"
	never := clientv3.Compare(clientv3.Version(key), "=", -1)
	answer, err := kv.Txn(ctx).If(never).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}
