package storage

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"

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

// fatality is what becomes of messages after which etcd cannot go on. They end the
// goroutine, and nothing is acknowledged any more. While etcd starts they are an error of
// the start: it panics in goroutines of its own when it finds damage, which nobody could
// recover from. Later on the server has failed, and whoever runs it opens it anew, in
// another process: what is left of it still holds its files.
type fatality struct {
	ctx  context.Context // ends with the reason
	stop context.CancelCauseFunc
	// due ends, too, when the server still works and will fail later.
	due  context.Context
	warn context.CancelCauseFunc
}

func newFatality(ctx context.Context) *fatality {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	due, warn := context.WithCancelCause(ctx)
	return &fatality{ctx, stop, due, warn}
}

// OnWrite implements zapcore.CheckWriteHook.
func (f *fatality) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	var text strings.Builder
	text.WriteString(entry.Message)
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			text.WriteString(": " + err.Error())
		}
	}
	f.fail(errors.New(text.String()))
	runtime.Goexit()
}

// fail keeps the first reason.
func (f *fatality) fail(err error) { f.stop(err) }

func (f *fatality) failed() <-chan struct{} { return f.ctx.Done() }

// err returns why etcd has failed, or nil.
func (f *fatality) err() error { return context.Cause(f.ctx) }

// expected are warnings that a lone member without listeners cannot avoid, or that every
// empty folder causes.
var expected = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
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
