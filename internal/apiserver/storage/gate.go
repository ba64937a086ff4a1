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
	// inFlightBytes is how much is on its way at a time while there is little room; an
	// object that is larger goes alone. It is more than the largest request.
	inFlightBytes = 4 << 20
	// renewAfter is how much is written until what was before is to give its room back,
	// and renewBy until it must have: together with what is on its way that is less than a
	// file of the log, so the one that was begun since is followed by one that is there.
	renewAfter = 4 << 20
	renewBy    = 9 << 20
	// leastWrite is what a write of little takes: pages of the database. It also bounds how
	// many are on their way.
	leastWrite = 8 << 10
	// retryAfter is how long writes that cannot go on without a renewal are refused after one
	// that was of no use to them: each takes something of the log, and holds everybody up.
	retryAfter = time.Second
)

// gate lets writes to the database through. While there is little room it lets in only as
// much at a time as there is room for behind the end of the log, and after every few MiB
// makes etcd give back the room of what is outdated. So what is permitted on a full disk
// may be written without end.
type gate struct {
	look func() outlook
	// renew gives room back; with all, also that of what has been outdated just now.
	renew    func(ctx context.Context, all bool) error
	inFlight *semaphore.Weighted
	spent    atomic.Int64 // bytes written since room is scarce, or the last renewal

	// Of the last renewal that left a write without room; used by who is alone.
	failed  time.Time
	refusal error
}

func (e *embedded) newGate() *gate {
	return &gate{look: e.look, renew: e.renew, inFlight: semaphore.NewWeighted(inFlightBytes)}
}

// enter waits until size bytes may be written, and returns what to call once they are.
func (g *gate) enter(ctx context.Context, size int64) (leave func(), err error) {
	size = max(size, leastWrite)
	if g.look().refusal == nil { // all that etcd will need is held
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
	// Nothing else may be on its way meanwhile.
	leave()
	if err := g.inFlight.Acquire(ctx, inFlightBytes); err != nil {
		return nil, err
	}
	leave = func() { g.inFlight.Release(inFlightBytes) }
	if err := g.turn(ctx, size); err != nil {
		g.spent.Add(-size) // it is not made
		leave()
		return nil, err
	}
	return leave, nil
}

// due reports whether room should be given back before a write.
func (g *gate) due(size int64) bool {
	return g.spent.Load() >= renewAfter || !g.look().takes(size)
}

// turn renews, for a write of size bytes that is alone. As long as that can wait its failure
// is none.
func (g *gate) turn(ctx context.Context, size int64) error {
	if !g.due(size) { // another one has
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
		return nil // after a failure the next write tries again
	}
	if !g.look().takes(size) {
		err = errors.Join(err, insufficient("the disk of the cluster's data is full, and there is no room for this write: make room"))
	}
	g.failed, g.refusal = time.Now(), err
	return err
}

// wanting reports whether a write cannot go on without a renewal.
func (g *gate) wanting(size int64) bool {
	return g.spent.Load() >= renewBy || !g.look().takes(size)
}

// renew makes etcd give back the room of what is outdated: of its log, by a snapshot, and of
// revisions, in the database, by compaction to the one of the last renewal: who watches has
// had that, and with events wants to know what was there before. etcd makes a snapshot after
// so many entries, whatever their size, so it gets as many that change nothing. Who asked may
// go meanwhile: a renewal half done has used up room and made none.
func (e *embedded) renew(ctx context.Context, all bool) error {
	return whileAlive(context.WithoutCancel(ctx), e.end, func(ctx context.Context) error { return e.turnOver(ctx, all) })
}

func (e *embedded) turnOver(ctx context.Context, all bool) error {
	if e.look().short || e.space.log.ends() { // and etcd ends, too, if it gets to the end
		return noSnapshot(errors.New("there is none behind the log's present file"))
	}
	giveBack, err := e.space.forSnapshot()
	if err != nil {
		return noSnapshot(err)
	}
	if n := snapshotEvery - idleMoment - e.entries(); n > 0 { // what takes long
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
	// etcd answers before the snapshot is made, and goes on to the next entry after it
	now, err := idle(ctx, e.own)
	if err != nil {
		return err
	}
	if e.keepsLog() {
		return noSnapshot(errors.New("what was held for it is gone"))
	}
	e.look() // the log's next file is made of what it has released
	to := e.renewed
	e.renewed = now
	if all {
		to = now // who watches too slowly has to list anew
	}
	if to == 0 || to == now && !all {
		return nil
	}
	_, err = e.own.Compact(ctx, to, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) { // the compactor was faster
		return nil
	}
	return err
}

func noSnapshot(err error) error {
	return insufficient("the disk of the cluster's data is full, and there is no room for a snapshot of them: make room (%v)", err)
}

const (
	idleMoment = 100 // entries: some milliseconds
	idleAtOnce = 500
)

// idle makes n entries of the log.
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

// idle makes an entry of the log that changes nothing, for no key has that version. It
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
