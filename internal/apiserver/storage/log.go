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

// etcdLogger passes etcd's warnings and worse on to our log. Where etcd would panic or exit, end
// decides; if end is nil, etcd panics.
func etcdLogger(end *fatality) *zap.Logger {
	if end == nil {
		return zap.New(klogCore{}, zap.WithFatalHook(zapcore.WriteThenPanic))
	}
	return zap.New(klogCore{end: end}, zap.WithFatalHook(end), zap.WithPanicHook(end))
}

// fatality handles the messages after which etcd cannot go on. From then on, nothing is
// acknowledged.
//
// While etcd starts, such a message ends the goroutine and makes the start return an error: etcd
// panics in its own goroutines when it finds damage, and nobody could recover from that. Later on,
// the server has failed, and its owner opens the data again in another process, because the remains
// of this one still hold the files. The goroutine then blocks for ever: what it would do on its way
// out, such as closing files that others write to, would end the process.
//
// A snapshot that there was no room for is not such a message, although etcd takes it for one: the
// log and the database still hold what it would have saved. It is retried with the next entry of
// the log, and until then the files of the log that it would have outdated must stay:
// embedded.keepsLog.
type fatality struct {
	serving chan struct{}          // closed once the server has started
	server  *etcdserver.EtcdServer // set before serving is closed
	missed  atomic.Uint64          // the index of the last snapshot without room, or 0
	removed atomic.Bool            // the other members have said that this one is none

	ctx  context.Context // cancelled with the reason
	stop context.CancelCauseFunc
	// due is also cancelled when the server still works but will fail later.
	due  context.Context
	warn context.CancelCauseFunc
}

func newFatality(ctx context.Context) *fatality {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	due, warn := context.WithCancelCause(ctx)
	return &fatality{serving: make(chan struct{}), ctx: ctx, stop: stop, due: due, warn: warn}
}

// serves records that the server has started.
func (f *fatality) serves(server *etcdserver.EtcdServer) {
	f.server = server
	close(f.serving)
}

// started waits until the server has started, or has failed to. If it fails to, the goroutine that
// makes snapshots never runs. It reports whether the server has started.
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

// miss records a missed snapshot and asks for another one. It is called by the goroutine that makes
// snapshots, which is the only one that may ask for another, before that goroutine releases files
// of the log.
func (f *fatality) miss(index uint64, reason error) {
	if last := f.missed.Swap(index); last == 0 || index > last+snapshotEvery { // not for every entry
		klog.ErrorS(reason, "No space for a snapshot on the disk of the cluster's data; every write tries again")
	}
	f.server.ForceSnapshot()
}

// noRoomForSnapshot reports whether there was no room for a snapshot's own file, and returns the
// snapshot's index. The record of the snapshot in the log always has room: if that write had
// failed, the log would be broken.
func noRoomForSnapshot(reason error) (index uint64, ok bool) {
	var file *fs.PathError
	if !errors.As(reason, &file) || !isNoRoom(reason) {
		return 0, false
	}
	return snapshotIndex(file.Path)
}

// fail records that etcd has failed; only the first reason counts.
func (f *fatality) fail(err error) { f.stop(err) }

func (f *fatality) failed() <-chan struct{} { return f.ctx.Done() }

// err returns why etcd has failed, or nil.
func (f *fatality) err() error { return context.Cause(f.ctx) }

// expected are warnings that a lone member without listeners cannot avoid, or that every empty
// folder causes. The last but one appears a thousand times while etcd goes through a long log;
// fatality handles the last.
var expected = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"failed to publish local member to cluster through raft":                               true,
	"failed to write a snap file":                                                          true,
}

// klogCore is a zap core that writes to klog.
type klogCore struct {
	fields []zapcore.Field
	end    *fatality
}

// notMember is what etcd says when the other members do not know it any more.
const notMember = "data-dir used by this member must be removed"

func (klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel || klog.V(4).Enabled()
}

func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{fields: append(slices.Clip(c.fields), fields...), end: c.end}
}

func (c klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && (!expected[entry.Message] || klog.V(4).Enabled()) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Message == notMember && c.end != nil {
		c.end.removed.Store(true)
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(slices.Clip(c.fields), fields...) {
		f.AddTo(enc)
	}
	kv := make([]any, 0, 2*len(enc.Fields))
	for k, v := range enc.Fields {
		kv = append(kv, k, v)
	}
	switch {
	case entry.Level > zapcore.ErrorLevel: // the hook handles it
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
