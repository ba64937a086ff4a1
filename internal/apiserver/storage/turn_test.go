package storage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// addUpTo writes a key below a folder if there are fewer than most, and reports whether it did. It looks as often as it must.
func addUpTo(ctx context.Context, b *Backend, key string, most int64) (bool, error) {
	for {
		turn, err := b.BeginTurn(ctx, "limit")
		if err != nil {
			return false, err
		}
		have, err := b.client.KV.Get(ctx, "/registry/limited/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || have.Count >= most {
			return false, err
		}
		writing := TakingTurns(ctx)
		Mind(writing, turn)
		put, err := b.client.OptimisticPut(writing, "/registry/limited/"+key, []byte("x"), 0, kubernetes.PutOptions{})
		if !IsMissedTurn(err) {
			return err == nil && put.Succeeded, err
		}
	}
}

// Servers that decide by what is stored, each one thing at a time, decide one after another.
func TestServersTakeTurns(t *testing.T) {
	s := newServers(t)
	a := s.first()
	backends := []*Backend{a, s.join("b", a)}
	added := make([]int, len(backends))
	var all sync.WaitGroup
	for i, b := range backends {
		all.Go(func() {
			for n := range 40 {
				ok, err := addUpTo(t.Context(), b, fmt.Sprint(i, "-", n), 25)
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					added[i]++
				}
			}
		})
	}
	all.Wait()
	have, err := a.client.KV.Get(t.Context(), "/registry/limited/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || have.Count != 25 || added[0]+added[1] != 25 {
		t.Errorf("%d are there, %v were added: %v; want 25", have.Count, added, err)
	}
	marks, err := a.client.KV.Get(t.Context(), turnPrefix, clientv3.WithPrefix())
	if err != nil || len(marks.Kvs) == 0 || len(marks.Kvs) > 2 {
		t.Fatalf("%d marks: %v; want one of each server", len(marks.Kvs), err)
	}
	for _, kv := range marks.Kvs {
		if kv.Lease == 0 || !strings.HasPrefix(string(kv.Key), turnPrefix+"limit/") {
			t.Errorf("a mark that stays for ever: %+v", kv)
		}
	}
}

// A server's own marks are not in its way, those of others are, and a key that is there is told from a turn that was missed.
func TestTurnsAreMissedForOthersOnly(t *testing.T) {
	s := newServers(t)
	a := s.first()
	b := s.join("b", a)
	put := func(by *Backend, turn *Turn, key string) (kubernetes.PutResponse, error) {
		ctx := TakingTurns(t.Context())
		Mind(ctx, turn)
		return by.client.OptimisticPut(ctx, "/registry/"+key, []byte("x"), 0, kubernetes.PutOptions{GetOnFailure: true})
	}
	begin := func(by *Backend) *Turn {
		turn, err := by.BeginTurn(t.Context(), "t")
		if err != nil || turn == nil {
			t.Fatalf("%v, %v", turn, err)
		}
		return turn
	}
	first, second, others := begin(a), begin(a), begin(b)
	for key, turn := range map[string]*Turn{"1": first, "2": second} {
		if got, err := put(a, turn, key); err != nil || !got.Succeeded {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if got, err := put(b, others, "3"); !IsMissedTurn(err) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := put(b, begin(b), "1"); err != nil || got.Succeeded || string(got.KV.Value) != "x" {
		t.Errorf("it is there: %+v, %v", got, err)
	}
	if got, err := put(b, begin(b), "3"); err != nil || !got.Succeeded {
		t.Errorf("%+v, %v", got, err)
	}
	// etcd may have been restored since.
	if _, err := b.client.Revoke(t.Context(), b.turns.lease); err != nil {
		t.Fatal(err)
	}
	if got, err := put(b, begin(b), "4"); !IsMissedTurn(err) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := put(b, begin(b), "4"); err != nil || !got.Succeeded {
		t.Errorf("%+v, %v", got, err)
	}
}

// What cannot have another server costs nothing.
func TestALoneServerTakesNoTurns(t *testing.T) {
	b, err := Open(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, b)
	if turn, err := b.BeginTurn(t.Context(), "t"); turn != nil || err != nil {
		t.Errorf("%v, %v", turn, err)
	}
}
