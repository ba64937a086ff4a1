package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// etcdLogger brings what etcd has to say from a warning upwards into our log. Where etcd
// would panic or exit, end decides; without one that is a panic.
func etcdLogger(end *fatality) *zap.Logger {
	if end == nil {
		return zap.New(klogCore{}, zap.WithFatalHook(zapcore.WriteThenPanic))
	}
	return zap.New(klogCore{}, zap.WithFatalHook(end), zap.WithPanicHook(end))
}

// fatality is what becomes of messages after which etcd cannot go on. Nothing is
// acknowledged any more. While etcd starts they end the goroutine, and are an error of the
// start: it panics in goroutines of its own when it finds damage, which nobody could recover
// from. Later on the server has failed, and whoever runs it opens it anew, in another process:
// what is left of it still holds its files. Then the goroutine stays where it is: what it
// would do on its way out, as closing what others write to, would end the process.
//
// A snapshot that there was no room for is no such message, although etcd takes it for one: it
// saves what the log and the database hold, too. It is made with the next entry of the log, and
// until then the files of the log that it would have outdated are to stay: embedded.keepsLog.
type fatality struct {
	serving chan struct{}          // closed once the server has started
	server  *etcdserver.EtcdServer // as of then
	missed  atomic.Uint64          // the index of the last snapshot without room, or 0

	ctx  context.Context // ends with the reason
	stop context.CancelCauseFunc
	// due ends, too, when the server still works and will fail later.
	due  context.Context
	warn context.CancelCauseFunc
}

func newFatality(ctx context.Context) *fatality {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	due, warn := context.WithCancelCause(ctx)
	return &fatality{serving: make(chan struct{}), ctx: ctx, stop: stop, due: due, warn: warn}
}

// serves says that the server has started.
func (f *fatality) serves(server *etcdserver.EtcdServer) {
	f.server = server
	close(f.serving)
}

// started waits until the server has started, or its start has failed, which happens without
// the goroutine that makes snapshots.
func (f *fatality) started() bool {
	select {
	case <-f.serving:
		return true
	case <-f.ctx.Done():
		return false
	}
}

// OnWrite implements zapcore.CheckWriteHook.
func (f *fatality) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	reason := errors.New(entry.Message)
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			reason = fmt.Errorf("%w: %w", reason, err)
		}
	}
	if index, ok := noRoomForSnapshot(reason); ok && f.started() {
		f.miss(index, reason)
		return
	}
	f.fail(reason)
	select {
	case <-f.serving:
		select {}
	default:
		runtime.Goexit()
	}
}

// miss is called by the goroutine that makes snapshots, which is the only one that may ask for
// another, and before it releases files of the log.
func (f *fatality) miss(index uint64, reason error) {
	if last := f.missed.Swap(index); last == 0 || index > last+snapshotEvery { // not with every entry
		klog.ErrorS(reason, "The disk of the cluster's data has no room for a snapshot of them, which is tried again with every write")
	}
	f.server.ForceSnapshot()
}

// noRoomForSnapshot reports whether a snapshot's own file is what there was no room for, and
// returns its index. The record of it in the log has its room: had that failed, the log would be
// broken.
func noRoomForSnapshot(reason error) (index uint64, ok bool) {
	var file *fs.PathError
	if !errors.As(reason, &file) || !isNoRoom(reason) {
		return 0, false
	}
	return snapshotIndex(file.Path)
}

// fail keeps the first reason.
func (f *fatality) fail(err error) { f.stop(err) }

func (f *fatality) failed() <-chan struct{} { return f.ctx.Done() }

// err returns why etcd has failed, or nil.
func (f *fatality) err() error { return context.Cause(f.ctx) }

// expected are warnings that a lone member without listeners cannot avoid, or that every
// empty folder causes. The last but one comes a thousand times while a long log is gone
// through; the last is what fatality decides about.
var expected = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"failed to publish local member to cluster through raft":                               true,
	"failed to write a snap file":                                                          true,
}

// klogCore is a zap core that writes to klog.
type klogCore struct{ fields []zapcore.Field }

func (klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel || klog.V(4).Enabled()
}

func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{fields: append(slices.Clip(c.fields), fields...)}
}

func (c klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && (!expected[entry.Message] || klog.V(4).Enabled()) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(slices.Clip(c.fields), fields...) {
		f.AddTo(enc)
	}
	kv := make([]any, 0, 2*len(enc.Fields))
	for k, v := range enc.Fields {
		kv = append(kv, k, v)
	}
	switch {
	case entry.Level > zapcore.ErrorLevel: // the hook has it
	case entry.Level == zapcore.ErrorLevel:
		klog.ErrorS(nil, "etcd: "+entry.Message, kv...)
	case entry.Level >= zapcore.WarnLevel:
		klog.InfoS("etcd: "+entry.Message, kv...)
	default:
		klog.V(4).InfoS("etcd: "+entry.Message, kv...)
	}
	return nil
}

func (klogCore) Sync() error { return nil }
