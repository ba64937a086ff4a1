package storage

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"k8s.io/klog/v2"
)

// errClosed is the answer to calls that come too late.
var errClosed = errors.New("etcd is closed")

const (
	// finishPatience is how long calls that were begun may take to finish before etcd is closed. It is
	// long for all but those that a slow disk holds up.
	finishPatience = 5 * time.Second
	// endPatience is how long they may take to end then, after their contexts have ended.
	endPatience = 2 * time.Second
)

// door is what every call goes through to the server in this process. A listener would know its
// connections, and end them before the server; here a call would go on in a server that is closed, and
// read pages of its database that are not mapped any more.
//
//	open ── close ──▶ shut: new calls are refused, old ones finish ── await ──▶ nobody is inside
type door struct {
	// ctx ends when calls must end: the server has failed, or calls do not finish before it is closed.
	ctx  context.Context
	stop context.CancelCauseFunc

	mu    sync.RWMutex
	shut  bool
	calls sync.WaitGroup
}

func newDoor(end *fatality) *door {
	ctx, stop := context.WithCancelCause(end.ctx)
	return &door{ctx: ctx, stop: stop}
}

// enter lets a call in. The caller calls leave after it.
func (d *door) enter() (leave func(), err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.shut {
		return nil, errClosed
	}
	d.calls.Add(1)
	return d.calls.Done, nil
}

// close refuses new calls.
func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
}

// await waits until the calls that were begun have ended. Those that take too long are told to end. Calls
// of a server that has failed may never end.
func (d *door) await(end *fatality) {
	defer d.stop(errClosed)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.calls.Wait()
	}()
	for _, patience := range []time.Duration{finishPatience, endPatience} {
		select {
		case <-ended:
			return
		case <-end.failed():
			return
		case <-time.After(patience):
			d.stop(errClosed)
		}
	}
	klog.Background().Info("Closing etcd although calls have not ended", "after", finishPatience+endPatience)
}

// err returns why calls must end, or nil.
func (d *door) err() error { return context.Cause(d.ctx) }

// pass makes one call.
func pass[Q, A any](ctx context.Context, d *door, q Q, call func(context.Context, Q) (A, error)) (answer A, err error) {
	leave, err := d.enter()
	if err != nil {
		return answer, err
	}
	defer leave()
	return call(ctx, q)
}

// stream serves one stream, until it ends.
func (d *door) stream(serve func() error) error {
	leave, err := d.enter()
	if err != nil {
		return err
	}
	defer leave()
	return serve()
}

// newClient returns a client of the server, all of whose calls go through the door. Closing it ends watches
// and the renewal of leases.
func newClient(ctx context.Context, s *etcdserver.EtcdServer, d *door) *clientv3.Client {
	c := clientv3.NewCtxClient(context.WithoutCancel(ctx), clientv3.WithZapLogger(s.Logger()))
	kv := kvServer{v3rpc.NewQuotaKVServer(s), d}
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(kv), c)
	lease := leaseServer{v3rpc.NewQuotaLeaseServer(s), d}
	c.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(lease), c, leaseTimeout)
	watch := watchServer{v3rpc.NewWatchServer(s), d}
	c.Watcher = clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(watch), c)
	maintenance := maintenanceServer{v3rpc.NewMaintenanceServer(s, nil), d}
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(adapter.MaintenanceServerToMaintenanceClient(maintenance), c)
	return c
}

// leaseTimeout is how long the first renewal of a lease may take.
const leaseTimeout = time.Second

// kvServer is etcd's service of keys behind a door.
type kvServer struct {
	pb.KVServer
	door *door
}

func (s kvServer) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return pass(ctx, s.door, r, s.KVServer.Range)
}

func (s kvServer) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return pass(ctx, s.door, r, s.KVServer.Put)
}

func (s kvServer) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return pass(ctx, s.door, r, s.KVServer.DeleteRange)
}

func (s kvServer) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return pass(ctx, s.door, r, s.KVServer.Txn)
}

func (s kvServer) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return pass(ctx, s.door, r, s.KVServer.Compact)
}

// RangeStream ends at once: the client in this process does not have it.
func (s kvServer) RangeStream(r *pb.RangeRequest, to pb.KV_RangeStreamServer) error {
	return s.door.stream(func() error { return s.KVServer.RangeStream(r, to) })
}

// leaseServer is etcd's service of leases behind a door.
type leaseServer struct {
	pb.LeaseServer
	door *door
}

func (s leaseServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return pass(ctx, s.door, r, s.LeaseServer.LeaseGrant)
}

func (s leaseServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return pass(ctx, s.door, r, s.LeaseServer.LeaseRevoke)
}

func (s leaseServer) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return pass(ctx, s.door, r, s.LeaseServer.LeaseTimeToLive)
}

func (s leaseServer) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	return pass(ctx, s.door, r, s.LeaseServer.LeaseLeases)
}

func (s leaseServer) LeaseKeepAlive(to pb.Lease_LeaseKeepAliveServer) error {
	return s.door.stream(func() error { return s.LeaseServer.LeaseKeepAlive(to) })
}

// watchServer is etcd's service of watches behind a door.
type watchServer struct {
	pb.WatchServer
	door *door
}

func (s watchServer) Watch(to pb.Watch_WatchServer) error {
	return s.door.stream(func() error { return s.WatchServer.Watch(to) })
}

// maintenanceServer is etcd's service of maintenance behind a door.
type maintenanceServer struct {
	pb.MaintenanceServer
	door *door
}

func (s maintenanceServer) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	return pass(ctx, s.door, r, s.MaintenanceServer.Alarm)
}

func (s maintenanceServer) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return pass(ctx, s.door, r, s.MaintenanceServer.Status)
}

func (s maintenanceServer) Hash(ctx context.Context, r *pb.HashRequest) (*pb.HashResponse, error) {
	return pass(ctx, s.door, r, s.MaintenanceServer.Hash)
}

func (s maintenanceServer) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	return pass(ctx, s.door, r, s.MaintenanceServer.HashKV)
}

func (s maintenanceServer) Snapshot(r *pb.SnapshotRequest, to pb.Maintenance_SnapshotServer) error {
	return s.door.stream(func() error { return s.MaintenanceServer.Snapshot(r, to) })
}
