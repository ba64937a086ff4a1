package storage

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

// presencePrefix is where upstream's API servers say that they are there, too.
const presencePrefix = prefix + "/masterleases/"

const (
	// presenceTTL is how long a server that has died counts as present, in seconds.
	presenceTTL = 5
	// presenceRetry is the pause after something went wrong.
	presenceRetry = time.Second
)

// KeepPresent says until ctx ends, in the data, that a server is there, and tells changed the names of all that are: at once,
// and when it changes. A server that dies is gone after some seconds. value is what is stored for it.
func (b *Backend) KeepPresent(ctx context.Context, name string, value []byte, changed func(names []string)) error {
	for {
		err := b.present(ctx, name, value, changed)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop
		}
		klog.FromContext(ctx).Info("Cannot say that this server is there, trying again", "err", err)
		select {
		case <-time.After(presenceRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

// present does the work of KeepPresent until something goes wrong.
func (b *Backend) present(ctx context.Context, name string, value []byte, changed func([]string)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lease, err := b.client.Grant(ctx, presenceTTL)
	if err != nil {
		return err
	}
	defer func() {
		// Others learn at once that it has gone.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), presenceRetry)
		defer cancel()
		_, rerr := b.client.Revoke(ctx, lease.ID)
		err = errors.Join(err, rerr)
	}()
	if _, err := b.client.Put(ctx, presencePrefix+name, string(value), clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	alive, err := b.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	var told []string
	tell := func() (revision int64, err error) {
		have, err := b.client.KV.Get(ctx, presencePrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return 0, err
		}
		names := make([]string, 0, len(have.Kvs))
		for _, kv := range have.Kvs {
			names = append(names, path.Base(string(kv.Key)))
		}
		if !slices.Contains(names, name) {
			return 0, fmt.Errorf("the lease of %s has ended", name)
		}
		if !slices.Equal(names, told) {
			told = names
			changed(names)
		}
		return have.Header.Revision, nil
	}
	revision, err := tell()
	if err != nil {
		return err
	}
	events := b.client.Watch(ctx, presencePrefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	for {
		select {
		case r, ok := <-events:
			if !ok {
				return errors.New("the watch has ended")
			}
			if err := r.Err(); err != nil {
				return err
			}
			if _, err := tell(); err != nil {
				return err
			}
		case _, ok := <-alive:
			if !ok {
				return fmt.Errorf("the lease of %s could not be renewed", name)
			}
		}
	}
}
