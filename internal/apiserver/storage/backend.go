package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// prefix is the root of all keys, the same as upstream's default for --etcd-prefix.
const prefix = "/registry"

// Config says where the data is.
type Config struct {
	// Dir holds the embedded etcd's data; used when Servers is empty.
	Dir string
	// Peers is how the embedded etcd reaches those of other servers, if there are any.
	Peers *Peers
	// Servers are the client URLs of an external cluster.
	Servers                   []string
	CertFile, KeyFile, CAFile string
	// CompactionInterval is how often old revisions are dropped; 0 is never.
	CompactionInterval time.Duration
	Encryption         Encryption
	// GarbageCollection lets deletions wait for a garbage collector, in the foreground or to orphan
	// dependents. Without one they would wait for ever.
	GarbageCollection bool
	// DeleteWorkers is how many objects of a collection are deleted at a time.
	DeleteWorkers int
}

// Backend opens storage for resources, all over one etcd client.
type Backend struct {
	cfg        Config
	encryption *encryption
	client     *kubernetes.Client
	embedded   *embedded
	compactor  interface {
		etcd3.Compactor
		Stop()
	}
	counts    *Counts
	turns     *turns // nil if no other server can use the data
	closeOnce sync.Once
	closeErr  error
}

// Open opens the data. The caller closes the Backend once nothing uses it any more.
func Open(ctx context.Context, cfg Config) (*Backend, error) {
	b := &Backend{cfg: cfg}
	var err error
	if b.encryption, err = openEncryption(ctx, cfg.Encryption); err != nil {
		return nil, err
	}
	if len(cfg.Servers) == 0 {
		b.embedded, err = openEmbedded(ctx, cfg.Dir, cfg.Peers)
		if err == nil {
			b.client = &kubernetes.Client{Client: b.embedded.client}
		}
	} else {
		b.client, err = dial(ctx, cfg)
	}
	if err != nil {
		b.encryption.close()
		return nil, err
	}
	b.counts = newCounts(context.WithoutCancel(ctx))
	b.client.Kubernetes = b.client
	b.client.KV = etcd3.NewETCDLatencyTracker(b.client.KV)
	var around around
	var steady *steady
	if b.embedded != nil {
		around, steady = b.embedded.around, b.embedded.steady
	} else {
		d := newDistant(cfg.Servers, b.client.Status)
		around = func(ctx context.Context, size int, call func(context.Context) error) error {
			return toldOfQuota(ctx, size, func(ctx context.Context) error { return d.bounded(ctx, call) })
		}
	}
	b.client.KV = &aroundKV{KV: b.client.KV, around: around, steady: steady}
	b.client.Lease = &aroundLease{Lease: b.client.Lease, around: around, steady: steady}
	if b.embedded == nil || steady != nil {
		b.turns = newTurns(b.client.Client)
	}
	var probe interface {
		Endpoints() []string
		Status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)
	} = b.client
	if b.embedded != nil {
		probe = embeddedProbe{b.client.Client, cfg.Dir}
	}
	// etcd3.New cannot ask: the clients that it gets have no endpoints.
	//nolint:contextcheck // the check outlives Open, as long as the client does
	feature.DefaultFeatureSupportChecker.CheckClient(b.client.Ctx(), probe, storage.RequestWatchProgress)
	b.compactor = etcd3.NewCompactor(b.client.Client, cfg.CompactionInterval, clock.RealClock{}, nil)
	return b, nil
}

// Close stops what the Backend runs; storage opened by it must be stopped before.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() {
		b.counts.close()
		b.compactor.Stop()
		b.encryption.close()
		if b.embedded != nil {
			b.closeErr = b.embedded.close()
			return
		}
		b.closeErr = b.client.Close()
	})
	return b.closeErr
}

// RestartDue returns a channel that is closed when the embedded etcd has failed and every request
// is refused, or when it will fail before long: only another process can open the data again.
// RestartReason returns why. The channel is nil for an external etcd.
func (b *Backend) RestartDue() <-chan struct{} {
	if b.embedded == nil {
		return nil
	}
	return b.embedded.end.due.Done()
}

// RestartReason returns why RestartDue is closed, or nil.
func (b *Backend) RestartReason() error {
	if b.embedded == nil {
		return nil
	}
	return context.Cause(b.embedded.end.due)
}

// Room returns the error with which clients are refused everything that would make the data grow,
// or nil while there is room. growth is the number of bytes by which a stored object may still grow
// in a request that is accepted nevertheless. It costs a system call.
func (b *Backend) Room() (growth int64, refusal error) {
	if b.embedded == nil {
		return 0, nil
	}
	o := b.embedded.look()
	return o.growth, o.refusal
}

// Counts returns how many objects there are of each resource.
func (b *Backend) Counts() *Counts { return b.counts }

// checkPatience is upstream's --etcd-healthcheck-timeout.
const checkPatience = 2 * time.Second

// Check reads a key, for /readyz and /livez.
func (b *Backend) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	_, err := b.client.KV.Get(ctx, prefix+"/health")
	return err
}

// dial connects to an external cluster and waits until one member answers.
func dial(ctx context.Context, cfg Config) (*kubernetes.Client, error) {
	clientCfg := clientv3.Config{
		Endpoints:            cfg.Servers,
		DialTimeout:          20 * time.Second,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second,
		Logger:               etcdLogger(nil),
		Context:              context.WithoutCancel(ctx),
	}
	if cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" {
		info := transport.TLSInfo{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, TrustedCAFile: cfg.CAFile}
		tls, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd client certificate (--etcd-certfile, --etcd-keyfile, --etcd-cafile): %w", err)
		}
		clientCfg.TLS = tls
	}
	client, err := kubernetes.New(clientCfg)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w", cfg.Servers, err)
	}
	ctx, cancel := context.WithTimeout(ctx, clientCfg.DialTimeout)
	defer cancel()
	if _, err := client.Get(ctx, prefix+"/health", kubernetes.GetOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("etcd at %v (--etcd-servers) does not answer: %w", cfg.Servers, err), client.Close())
	}
	if err := checkVersions(ctx, client.Client, cfg.Servers); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return client, nil
}

// oldestEtcd is the first release that reports the progress of watches reliably. With an older one,
// the watch cache would wait for that for ever (kubernetes/kubernetes#123072).
var oldestEtcd = semver.New("3.5.13")

// checkVersions returns an error if a member of the cluster is too old for the API server.
func checkVersions(ctx context.Context, client *clientv3.Client, servers []string) error {
	for _, s := range servers {
		status, err := client.Status(ctx, s)
		if err != nil {
			continue // a member that is down does not count: another one has answered
		}
		v, err := semver.NewVersion(status.Version)
		if err != nil {
			return fmt.Errorf("etcd at %s (--etcd-servers) reports an unreadable version %q: %w", s, status.Version, err)
		}
		if v.LessThan(*oldestEtcd) {
			return fmt.Errorf("etcd at %s (--etcd-servers) has version %s; upgrade it to %s or newer", s, v, oldestEtcd)
		}
	}
	return nil
}

// embeddedProbe gives the feature check an endpoint whose version it can ask for. The check asks each endpoint once in
// the life of the process, which can have several embedded etcds one after another.
type embeddedProbe struct {
	*clientv3.Client
	dir string
}

func (p embeddedProbe) Endpoints() []string { return []string{"embedded:" + p.dir} }

// CodecFor returns how objects of a resource are written and read.
type CodecFor func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)

// Options returns how stores are opened whose objects codec writes and reads, under the keys that
// prefix returns.
func (b *Backend) Options(codec CodecFor, prefix func(schema.GroupResource) string) generic.RESTOptionsGetter {
	return &options{b, codec, prefix}
}

type options struct {
	*Backend
	codec     CodecFor
	keyPrefix func(schema.GroupResource) string
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o *options) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, versioner, err := o.codec(resource)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	cfg := storagebackend.NewDefaultConfig(prefix, codec)
	cfg.EncodeVersioner = versioner
	return generic.RESTOptions{
		StorageConfig:           cfg.ForResource(resource),
		Decorator:               o.openRefusing,
		EnableGarbageCollection: o.cfg.GarbageCollection,
		DeleteCollectionWorkers: o.cfg.DeleteWorkers,
		ResourcePrefix:          o.keyPrefix(resource),
	}, nil
}

// kindless leaves out the kind of the objects of a list, as upstream does: all are of that which the list names.
type kindless struct{ etcd3.Decoder }

// DecodeListItem implements etcd3.Decoder.
func (d kindless) DecodeListItem(ctx context.Context, data []byte, rev uint64, newItem func() runtime.Object) (runtime.Object, error) {
	obj, err := d.Decoder.DecodeListItem(ctx, data, rev, newItem)
	if _, untyped := obj.(runtime.Unstructured); err == nil && !untyped {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, err
}

// openRefusing is the generic.StorageDecorator: storage that says whose fault its errors are.
func (b *Backend) openRefusing(
	cfg *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc, indexers storage.IndexerFuncs, cacheIndexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	s, destroy, err := b.open(cfg, resourcePrefix, keyFunc, newFunc, newListFunc, attrs, indexers, cacheIndexers)
	if err != nil {
		return nil, nil, err
	}
	return refusals{&afterFirstRead{Interface: s}}, destroy, nil
}

// uncached are the resources that have no watch cache, upstream's choice too: hardly anybody reads
// events, there are more of them than of everything else, and the cache would keep them all.
var uncached = []schema.GroupResource{{Resource: "events"}}

// open returns etcd3 storage under a watch cache, as the
// library builds it, but over our one client, with a stream for its watches.
func (b *Backend) open(
	cfg *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc, indexers storage.IndexerFuncs, cacheIndexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	// Errors name an object that cannot be decrypted or decoded; it can be deleted by
	// DeleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential (KEP-3926).
	transformer := tellingTransformer{etcd3.WithCorruptObjErrorHandlingTransformer(b.encryption.transformer(cfg.GroupResource))}
	decoder := etcd3.WithCorruptObjErrorHandlingDecoder(kindless{etcd3.NewDefaultDecoder(cfg.Codec, versioner)})
	store, err := etcd3.New(streamed(b.client, cfg.GroupResource), b.compactor, tellingCodec{sharing(cfg.GroupResource, cfg.Codec)}, newFunc, newListFunc,
		cfg.Prefix, resourcePrefix, cfg.GroupResource, transformer, cfg.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		return nil, nil, err
	}
	raw := etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, cfg.GroupResource)
	if slices.Contains(uncached, cfg.GroupResource) {
		forget := b.counts.add(cfg.GroupResource, raw)
		return raw, sync.OnceFunc(func() { forget(); store.Close() }), nil
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             raw,
		Versioner:           versioner,
		GroupResource:       cfg.GroupResource,
		EventsHistoryWindow: cfg.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        attrs,
		IndexerFuncs:        indexers,
		Indexers:            cacheIndexers,
		Codec:               cfg.Codec,
		Clock:               inStep{},
	})
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, raw)
	forget := b.counts.add(cfg.GroupResource, delegator)
	var once sync.Once
	return delegator, func() {
		once.Do(func() {
			forget()
			delegator.Stop()
			cached.Stop()
			store.Close()
		})
	}, nil
}
