package storage

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// claimPrefix is where claims live: keys that at most one object can hold, in all API
// servers on the same etcd.
const claimPrefix = prefix + "/wherry.dev/claims/"

// Claim takes a key for owner. It reports whether the key was free, and returns its present holder.
func (b *Backend) Claim(ctx context.Context, key, owner string) (fresh bool, holder string, err error) {
	full := claimPrefix + key
	resp, err := b.client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(full), "=", 0)).
		Then(clientv3.OpPut(full, owner)).
		Else(clientv3.OpGet(full)).
		Commit()
	if err != nil {
		return false, "", fmt.Errorf("claim %s: %w", key, err)
	}
	if resp.Succeeded {
		return true, owner, nil
	}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		holder = string(kv.Value)
	}
	return false, holder, nil
}

// Release gives up a key if owner holds it.
func (b *Backend) Release(ctx context.Context, key, owner string) error {
	full := claimPrefix + key
	_, err := b.client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(full), "=", owner)).
		Then(clientv3.OpDelete(full)).
		Commit()
	if err != nil {
		return fmt.Errorf("release %s: %w", key, err)
	}
	return nil
}

// Claims returns the owners of all keys below a folder, by key.
func (b *Backend) Claims(ctx context.Context, folder string) (map[string]string, error) {
	resp, err := b.client.KV.Get(ctx, claimPrefix+folder, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list claims in %s: %w", folder, err)
	}
	out := map[string]string{}
	for _, kv := range resp.Kvs {
		out[strings.TrimPrefix(string(kv.Key), claimPrefix)] = string(kv.Value)
	}
	return out, nil
}
