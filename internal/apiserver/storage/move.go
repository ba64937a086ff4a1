package storage

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// Move moves the objects of a resource to other keys: those that were stored below one prefix are below another then,
// with another resource version. It does nothing if there are none, and may be repeated. What is there already stays,
// because it is newer.
func (b *Backend) Move(ctx context.Context, resource schema.GroupResource, from, to string) error {
	from, to = prefix+"/"+from+"/", prefix+"/"+to+"/"
	some, err := b.client.KV.Get(ctx, from, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly(), clientv3.WithSerializable())
	if err != nil || some.Count == 0 {
		return err
	}
	all, err := b.client.KV.Get(ctx, from, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	transformer := b.encryption.transformer(resource)
	for _, kv := range all.Kvs {
		old := string(kv.Key)
		key := to + strings.TrimPrefix(old, from)
		data, err := moved(ctx, transformer, kv.Value, old, key)
		if err != nil {
			return fmt.Errorf("move %s to %s: %w", old, key, err)
		}
		unchanged := clientv3.Compare(clientv3.ModRevision(old), "=", kv.ModRevision)
		resp, err := b.client.KV.Txn(ctx).
			If(unchanged, clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, string(data)), clientv3.OpDelete(old)).
			Commit()
		if err == nil && !resp.Succeeded {
			_, err = b.client.KV.Txn(ctx).If(unchanged).Then(clientv3.OpDelete(old)).Commit()
		}
		if err != nil {
			return fmt.Errorf("move %s to %s: %w", old, key, err)
		}
	}
	return nil
}

// moved returns what is stored of an object under another key, which encryption takes into account. What cannot be
// read stays as it is: whoever reads it is told.
func moved(ctx context.Context, t value.Transformer, data []byte, from, to string) ([]byte, error) {
	plain, _, err := t.TransformFromStorage(ctx, data, value.DefaultContext(from))
	if err != nil {
		return data, nil //nolint:nilerr // see above
	}
	return t.TransformToStorage(ctx, plain, value.DefaultContext(to))
}
