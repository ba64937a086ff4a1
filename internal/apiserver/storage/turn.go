package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is decided from what is stored, "the quota has room for one more", holds only until another server has decided the
// same. So each such write leaves a mark of its server, in the same transaction, and is refused if another server has left
// one since the write's own server began to look. A server knows by itself what it has on its way, so its own marks do not
// count.

// turnPrefix has the marks, by what the turns are about and by server. They are no objects of the API's.
const turnPrefix = prefix + "/wherry.dev/turns/"

// A mark lasts as long as its lease, and a lease is used for the first half of its life. No request lives that long.
const (
	markTTL = 10 * 60 // seconds
	markUse = markTTL / 2 * time.Second
)

// turns leaves the marks of one server.
type turns struct {
	client *clientv3.Client
	server string // nobody else's

	mu    sync.Mutex
	lease clientv3.LeaseID
	until time.Time // when another lease is due
}

func newTurns(c *clientv3.Client) *turns { return &turns{client: c, server: rand.Text()} }

// grant returns a lease for marks.
func (t *turns) grant(ctx context.Context) (clientv3.LeaseID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease != clientv3.NoLease && time.Now().Before(t.until) {
		return t.lease, nil
	}
	granted, err := t.client.Grant(ctx, markTTL)
	if err != nil {
		return clientv3.NoLease, err
	}
	t.lease, t.until = granted.ID, time.Now().Add(markUse)
	return t.lease, nil
}

// lost forgets a lease that etcd does not know: it was restored, say.
func (t *turns) lost(lease clientv3.LeaseID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease == lease {
		t.lease = clientv3.NoLease
	}
}

// Turn is a look at what is stored, on which a write is decided.
type Turn struct {
	of    *turns
	about string // a folder of marks
	since int64  // the revision before the look
	lease clientv3.LeaseID
}

// BeginTurn is called before the look. about names what the decision is about, without slashes. It returns nil if there cannot be
// another server. It costs a read of etcd otherwise.
func (b *Backend) BeginTurn(ctx context.Context, about string) (*Turn, error) {
	if b.turns == nil {
		return nil, nil
	}
	t := &Turn{of: b.turns, about: turnPrefix + about + "/"}
	now, err := b.client.KV.Get(ctx, t.about, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil {
		t.since = now.Header.Revision
		t.lease, err = b.turns.grant(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("take turns with other API servers: %w", err)
	}
	return t, nil
}

type turnKey struct{}

// TakingTurns returns a context for a write that may be decided in a turn (Mind).
func TakingTurns(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, new(atomic.Pointer[Turn]))
}

// Mind makes the write of ctx fail with an error of which IsMissedTurn is true if another server has decided something since the turn
// began. Where the write is decided again, its last turn counts, and none if that is nil.
func Mind(ctx context.Context, t *Turn) {
	if of, ok := ctx.Value(turnKey{}).(*atomic.Pointer[Turn]); ok {
		of.Store(t)
	}
}

// minded returns the turn of a write, or nil.
func minded(ctx context.Context) *Turn {
	if of, ok := ctx.Value(turnKey{}).(*atomic.Pointer[Turn]); ok {
		return of.Load()
	}
	return nil
}

// others are the comparisons that hold while no other server has left a mark since the turn began.
func (t *Turn) others() []clientv3.Cmp {
	own, end := t.mark(), clientv3.GetPrefixRangeEnd(t.about)
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(t.about).WithRange(own), "<", t.since+1),
		clientv3.Compare(clientv3.ModRevision(own+"\x00").WithRange(end), "<", t.since+1),
	}
}

func (t *Turn) mark() string { return t.about + t.of.server }

// leaving adds the mark to what a transaction does.
func (t *Turn) leaving(ops []clientv3.Op) []clientv3.Op {
	return append(slices.Clone(ops), clientv3.OpPut(t.mark(), "", clientv3.WithLease(t.lease)))
}

// asking adds to what a transaction does if it may not: it says whose mark is in its way.
func (t *Turn) asking(ops []clientv3.Op) []clientv3.Op {
	return append(slices.Clone(ops), clientv3.OpGet(t.about, clientv3.WithPrefix(), clientv3.WithKeysOnly()))
}

// told returns the answer without what leaving and asking have added, or an error if it was not this server's turn.
func (t *Turn) told(answer *clientv3.TxnResponse, err error) (*clientv3.TxnResponse, error) {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.of.lost(t.lease)
		return nil, errMissedTurn
	}
	if err != nil || len(answer.Responses) == 0 { // none: it was found out later that it was carried out
		return answer, err
	}
	last := len(answer.Responses) - 1
	marks := answer.Responses[last].GetResponseRange()
	answer.Responses = answer.Responses[:last]
	if answer.Succeeded {
		return answer, nil
	}
	for _, kv := range marks.GetKvs() {
		if kv.ModRevision > t.since && string(kv.Key) != t.mark() {
			return nil, errMissedTurn
		}
	}
	return answer, nil
}

const missedTurn = "another API server has admitted something in the same moment that this request would exceed a limit with; try again"

// errMissedTurn is told to clients of whose writes the server cannot take another turn by itself. They try again after a second.
var errMissedTurn = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: missedTurn,
	Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
}}

// IsMissedTurn reports whether a write failed because another server has decided something meanwhile.
func IsMissedTurn(err error) bool {
	var s apierrors.APIStatus
	return errors.As(err, &s) && strings.HasSuffix(s.Status().Message, missedTurn)
}
