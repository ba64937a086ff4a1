package storage

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// increment adds one to a number, as the API server updates objects. who tells the clients apart.
func increment(ctx context.Context, b *Backend, key, who string) error {
	for {
		now, err := b.client.Get(ctx, key, kubernetes.GetOptions{})
		if err != nil {
			return err
		}
		n, revision := 0, int64(0)
		if now.KV != nil {
			revision = now.KV.ModRevision
			if n, err = number(now.KV.Value); err != nil {
				return err
			}
		}
		put, err := b.client.OptimisticPut(ctx, key, []byte(fmt.Sprintf("%d by %s", n+1, who)), revision, kubernetes.PutOptions{GetOnFailure: true})
		if err != nil || put.Succeeded {
			return err
		}
	}
}

func number(value []byte) (int, error) {
	n, _, _ := strings.Cut(string(value), " ")
	return strconv.Atoi(n)
}

// Clients of the servers that are left notice nothing but a pause: no request fails, and each is carried out once.
func TestRequestsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	all := map[string]*Backend{"a": s.first()}
	all["b"] = s.join("b", all["a"])
	all["c"] = s.join("c", all["a"])
	var leader string
	for name, b := range all {
		if b.embedded.etcd.Server.Leader() == b.embedded.etcd.Server.MemberID() {
			leader = name
		}
	}
	var wg sync.WaitGroup
	var ended atomic.Bool
	defer time.AfterFunc(6*time.Second, func() { ended.Store(true) }).Stop()
	var made [2]atomic.Int64
	for name, b := range all {
		if name == leader {
			continue
		}
		for i := range 8 {
			wg.Go(func() {
				for n := 0; !ended.Load(); n++ {
					// Numbers, each by one client and both servers: a lost or doubled one is seen.
					if err := increment(t.Context(), b, "/registry/numbers/"+strconv.Itoa(i%4), name+strconv.Itoa(i)); err != nil {
						t.Errorf("%s: update: %v", name, err)
						return
					}
					made[0].Add(1)
					key := fmt.Sprintf("/registry/own/%s/%d/%d", name, i, n)
					put, err := b.client.OptimisticPut(t.Context(), key, []byte(key), 0, kubernetes.PutOptions{})
					if err != nil || !put.Succeeded {
						t.Errorf("%s: create: %+v, %v", name, put, err)
						return
					}
					made[1].Add(1)
					if n%2 == 0 {
						continue
					}
					gone, err := b.client.OptimisticDelete(t.Context(), key, put.Revision, kubernetes.DeleteOptions{GetOnFailure: true})
					if err != nil || !gone.Succeeded {
						t.Errorf("%s: delete at %d: %+v, %v", name, put.Revision, gone, err)
						return
					}
					made[1].Add(-1)
				}
			})
		}
	}
	time.Sleep(time.Second)
	before := made[0].Load()
	all[leader].embedded.etcd.Server.HardStop() // as if it had been killed
	wg.Wait()
	t.Logf("%d updates before the leader went, %d after", before, made[0].Load()-before)
	if made[0].Load() == before {
		t.Error("nothing went on")
	}
	for name, b := range all {
		if name == leader {
			continue
		}
		total := 0
		for i := range 4 {
			got, err := b.client.KV.Get(t.Context(), "/registry/numbers/"+strconv.Itoa(i))
			if err != nil {
				t.Fatal(err)
			}
			n, err := number(got.Kvs[0].Value)
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
		if int64(total) != made[0].Load() {
			t.Errorf("%s: the numbers are %d together, and %d updates were acknowledged", name, total, made[0].Load())
		}
		own, err := b.client.KV.Get(t.Context(), "/registry/own/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || own.Count != made[1].Load() {
			t.Errorf("%s: there are %d, %v, and %d were made and not deleted", name, own.Count, err, made[1].Load())
		}
	}
}

// An attempt that is late has no effect any more.
func TestLateAttemptsAreFencedOff(t *testing.T) {
	s := newServers(t)
	a := s.first()
	steady := a.embedded.steady
	before := steady.now()
	late := a.embedded.own.Txn(t.Context()).
		If(clientv3.Compare(clientv3.ModRevision(steady.fence), "=", before), clientv3.Compare(clientv3.ModRevision("/registry/x"), "=", 0)).
		Then(clientv3.OpPut("/registry/x", "late"))
	if err := steady.move(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	put, err := a.client.OptimisticPut(t.Context(), "/registry/x", []byte("in time"), 0, kubernetes.PutOptions{})
	if err != nil || !put.Succeeded {
		t.Fatalf("%+v, %v", put, err)
	}
	if gone, err := a.client.OptimisticDelete(t.Context(), "/registry/x", put.Revision, kubernetes.DeleteOptions{}); err != nil || !gone.Succeeded {
		t.Fatalf("%+v, %v", gone, err)
	}
	if got, err := late.Commit(); err != nil || got.Succeeded {
		t.Errorf("an attempt from before the fence moved: %+v, %v", got, err)
	}
	shut(t, a)
	a = s.open("a") // it knows where the fence is
	if put, err := a.client.OptimisticPut(t.Context(), "/registry/x", []byte("again"), 0, kubernetes.PutOptions{}); err != nil || !put.Succeeded {
		t.Errorf("after a restart: %+v, %v", put, err)
	}
}

// What an earlier attempt has done counts as done.
func TestWhatAnEarlierAttemptHasDoneIsDone(t *testing.T) {
	s := newServers(t)
	a := s.first()
	kv := a.client.KV.(*aroundKV)
	failed, err := a.embedded.own.Txn(t.Context()).If(clientv3.Compare(clientv3.Version("/registry/none"), "=", 1)).Commit()
	if err != nil {
		t.Fatal(err)
	}
	expected := int64(0)
	settled := func(op clientv3.Op) *clientv3.TxnResponse {
		t.Helper()
		got, err := a.embedded.steady.settled(t.Context(), &aroundTxn{kv: kv, ctx: t.Context(), then: []clientv3.Op{op}, cmps: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(string(op.KeyBytes())), "=", expected)}}, failed)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	putTo(t, a, "ours")
	at, err := a.client.KV.Get(t.Context(), "/registry/x")
	if err != nil {
		t.Fatal(err)
	}
	created := at.Kvs[0].CreateRevision
	if got := settled(clientv3.OpPut("/registry/x", "ours")); !got.Succeeded || got.Header.Revision != created {
		t.Errorf("it is there: %+v, want revision %d", got, created)
	}
	if got := settled(clientv3.OpPut("/registry/x", "another")); got.Succeeded {
		t.Errorf("somebody else's is there: %+v", got)
	}
	putTo(t, a, "changed by another")
	if got := settled(clientv3.OpPut("/registry/x", "ours")); !got.Succeeded || got.Header.Revision != created {
		t.Errorf("it was created, and changed by another: %+v, want revision %d", got, created)
	}
	for range 3 {
		putTo(t, a, "changed again")
	}
	if got := settled(clientv3.OpPut("/registry/x", "changed again")); got.Succeeded {
		t.Errorf("it was changed by others, and one of them wrote the same: %+v", got)
	}
	expected = created
	if got := settled(clientv3.OpPut("/registry/x", "changed by another")); !got.Succeeded || got.Header.Revision <= created {
		t.Errorf("it was the first one to change it after %d: %+v", created, got)
	}
	if got := settled(clientv3.OpPut("/registry/x", "changed again")); got.Succeeded {
		t.Errorf("it was not the first one to change it after %d: %+v", created, got)
	}
	if got := settled(clientv3.OpDelete("/registry/x")); got.Succeeded {
		t.Errorf("it is not deleted: %+v", got)
	}
	if got := settled(clientv3.OpDelete("/registry/y")); !got.Succeeded {
		t.Errorf("it is deleted: %+v", got)
	}
}
