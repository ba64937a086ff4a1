package storage

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// etcdLogger brings what etcd has to say from a warning upwards into our log.
// Fatal becomes a panic: etcd would end the process without a word from us.
func etcdLogger() *zap.Logger {
	return zap.New(klogCore{}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// klogCore is a zap core that writes to klog.
type klogCore struct{ fields []zapcore.Field }

func (klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel || klog.V(4).Enabled()
}

func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	kv := make([]any, 0, 2*len(enc.Fields))
	for k, v := range enc.Fields {
		kv = append(kv, k, v)
	}
	switch {
	case entry.Level >= zapcore.ErrorLevel:
		klog.ErrorS(nil, "etcd: "+entry.Message, kv...)
	case entry.Level >= zapcore.WarnLevel:
		klog.InfoS("etcd: "+entry.Message, kv...)
	default:
		klog.V(4).InfoS("etcd: "+entry.Message, kv...)
	}
	return nil
}

func (klogCore) Sync() error { return nil }
