package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// When the leader of several members changes, what was asked of the old one may be lost, and its answer may be. etcd's own
// clients then wait seven seconds, and learn that they cannot know. Here a call ends as soon as there is another leader, and
// is made again:
//
//   - reads, and writes that do the same when they are made twice, just so.
//   - transactions behind a fence: each holds only while a key of this member's has not changed. Before one is made again
//     that key is changed, so that the first attempt, wherever it may still be on its way, has no effect from then on. What
//     it has done before, if anything, can then be seen.

// errNewLeader ends calls that were made of another leader than the present one.
var errNewLeader = errors.New("etcd has another leader")

// steadyPatience is how long calls are repeated.
const steadyPatience = 10 * time.Second

// fencePrefix has the fences of all members. They are no objects of the API's.
const fencePrefix = prefix + "/wherry.dev/fences/"

// steady makes calls that go on when the leader changes.
type steady struct {
	a     *assembly
	own   clientv3.KV // without any of this
	fence string      // the key

	term atomic.Pointer[term]

	mu sync.Mutex
	at int64 // the revision of the fence
}

// term is the time of one leader.
type term struct {
	ctx context.Context
	end context.CancelCauseFunc
}

func newTerm(ctx context.Context) *term {
	t := &term{}
	t.ctx, t.end = context.WithCancelCause(ctx)
	return t
}

// newSteady returns what makes calls of own, which goes to the server without waiting.
func newSteady(ctx context.Context, a *assembly, own clientv3.KV) (*steady, error) {
	s := &steady{a: a, own: own, fence: fencePrefix + a.server.MemberID().String()}
	life := context.WithoutCancel(ctx) // that of etcd
	s.term.Store(newTerm(life))
	go s.follow(life, a.server.LeaderChangedNotify())
	return s, s.do(ctx, func(ctx context.Context) error {
		have, err := own.Get(ctx, s.fence)
		if err == nil && len(have.Kvs) > 0 {
			s.at = have.Kvs[0].ModRevision
		}
		return err
	})
}

// follow ends the terms of leaders, until etcd ends. changed is closed when there is another one.
func (s *steady) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			changed = s.a.server.LeaderChangedNotify() // first, so that no change after this one is missed
			s.term.Swap(newTerm(ctx)).end(errNewLeader)
		case <-s.a.server.StopNotify():
			return
		case <-s.a.end.failed():
			return
		}
	}
}

// unsettled reports whether the leader is to blame for an error: then it is not known whether the call was carried out.
func unsettled(err error) bool {
	for _, is := range []error{
		errNewLeader, rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
		rpctypes.ErrTimeout, rpctypes.ErrNotLeader,
	} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// once makes a call that ends with errNewLeader when there is another leader.
func (s *steady) once(ctx context.Context, call func(context.Context) error) error {
	t := s.term.Load()
	if err := s.a.awaitLeader(ctx); err != nil {
		return err
	}
	calling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(errNewLeader) })() //nolint:contextcheck // the end of a leader, not of a request
	err := call(calling)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(calling), errNewLeader) {
		return errNewLeader
	}
	return err
}

// do makes a call again and again, until it is known what has become of it. It must do the same however often it is made.
func (s *steady) do(ctx context.Context, call func(context.Context) error) error {
	for end := time.Now().Add(steadyPatience); ; {
		err := s.once(ctx, call)
		if !unsettled(err) || ctx.Err() != nil || time.Now().After(end) {
			return s.told(err)
		}
	}
}

// told turns an outcome that is not known into words.
func (s *steady) told(err error) error {
	if !errors.Is(err, errNewLeader) {
		return err
	}
	return fmt.Errorf("%w: whether the request was carried out is not known", rpctypes.ErrTimeoutDueToLeaderFail)
}

// commit makes a transaction. What it does to its keys it does once.
func (s *steady) commit(ctx context.Context, t *aroundTxn, make func(ctx context.Context, cmps []clientv3.Cmp) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
	repeated := false
	for end := time.Now().Add(steadyPatience); ; {
		fence := s.now()
		cmps := append([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.fence), "=", fence)}, t.cmps...)
		var answer *clientv3.TxnResponse
		err := s.once(ctx, func(ctx context.Context) (err error) {
			answer, err = make(ctx, cmps)
			return err
		})
		switch {
		case err == nil && answer.Succeeded:
			return answer, nil
		case err == nil && s.now() != fence: // it may have failed for the fence only
			continue
		case err == nil && repeated:
			return s.settled(ctx, t, answer)
		case err == nil:
			return answer, nil
		case !unsettled(err) || ctx.Err() != nil || time.Now().After(end):
			return nil, s.told(err)
		}
		if err := s.move(ctx, fence); err != nil {
			return nil, err
		}
		repeated = true
	}
}

func (s *steady) now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// move puts the fence elsewhere than it was.
func (s *steady) move(ctx context.Context, from int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at != from {
		return nil
	}
	return s.do(ctx, func(ctx context.Context) error {
		answer, err := s.own.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.fence), "=", from)).
			Then(clientv3.OpPut(s.fence, "")).Else(clientv3.OpGet(s.fence)).Commit()
		switch {
		case err != nil:
			return err
		case answer.Succeeded:
			s.at = answer.Header.Revision
		default: // an earlier attempt
			for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
				s.at = kv.ModRevision
			}
		}
		return nil
	})
}

// mostChanges is how many changes of a key are looked through for an attempt's.
const mostChanges = 100

// settled returns the answer of a transaction that was made again, and has failed then: if that is because an earlier attempt
// has done its work, it has succeeded. Whoever else has written the very same bytes over the same revision is taken for this
// one: what is there is what both have asked for.
func (s *steady) settled(ctx context.Context, t *aroundTxn, answer *clientv3.TxnResponse) (*clientv3.TxnResponse, error) {
	if len(t.then) != 1 {
		return answer, nil
	}
	op := t.then[0]
	done := func(revision int64) (*clientv3.TxnResponse, error) {
		header := &pb.ResponseHeader{ClusterId: answer.Header.ClusterId, MemberId: answer.Header.MemberId, RaftTerm: answer.Header.RaftTerm, Revision: revision}
		return &clientv3.TxnResponse{Header: header, Succeeded: true}, nil
	}
	at := int64(0) // the present one
	var first *mvccpb.KeyValue
	for range mostChanges {
		var now *clientv3.GetResponse
		err := s.do(ctx, func(ctx context.Context) (err error) {
			now, err = s.own.Get(ctx, string(op.KeyBytes()), clientv3.WithRev(at))
			return err
		})
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil, s.told(errNewLeader)
		}
		if err != nil {
			return nil, err
		}
		if len(now.Kvs) == 0 && at == 0 && op.IsDelete() {
			return done(now.Header.Revision)
		}
		if len(now.Kvs) == 0 || now.Kvs[0].ModRevision <= t.expected() {
			// What came after this was the first change: ours, or somebody else's.
			if first != nil && op.IsPut() && bytes.Equal(first.Value, op.ValueBytes()) {
				return done(first.ModRevision)
			}
			return answer, nil
		}
		first = now.Kvs[0]
		at = first.ModRevision - 1
	}
	return nil, s.told(errNewLeader)
}

// expected returns the revision of the key at which the transaction was to do its work; 0 if there was to be no key.
func (t *aroundTxn) expected() int64 {
	for i := range t.cmps {
		c := t.cmps[i].GetCompare()
		if c.GetTarget() == pb.Compare_MOD && bytes.Equal(c.GetKey(), t.then[0].KeyBytes()) {
			return c.GetModRevision()
		}
	}
	return 0
}
