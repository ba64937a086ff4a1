package auth

import (
	"bytes"
	"context"
	"time"

	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"

	"wherry.dev/internal/safepath"
)

// rereadInterval is how often a configuration file is looked at when no event tells of a change, as upstream.
const rereadInterval = time.Minute

// configFile is a file that is read again when it changes. A content that is not valid leaves what there is in use.
type configFile[T any] struct {
	flag, path string
	// parse returns the configuration, or an error that only another content can mend.
	parse func(data []byte) (T, error)
	// install puts it to use. If it fails it is called again later.
	install func(ctx context.Context, config T) error
	// loaded, reloaded and failed count what happened.
	loaded, reloaded func(data string)
	failed           func()

	last []byte // what needs no look any more; only run changes it
}

// load reads the file for the first time.
func (f *configFile[T]) load() (config T, err error) {
	if f.last, err = safepath.ReadFile(f.path, safepath.ConfigSize); err != nil {
		return config, err
	}
	return f.parse(f.last)
}

// run follows the file until ctx ends.
func (f *configFile[T]) run(ctx context.Context) {
	log := klog.FromContext(ctx).WithValues("flag", f.flag, "file", f.path)
	f.loaded(string(f.last))
	check := func() {
		switch changed, err := f.check(ctx); {
		case ctx.Err() != nil:
		case err != nil:
			log.Error(err, "The file has changed and cannot be used; what was read before stays in use")
			f.failed()
		case changed:
			log.Info("The file has changed and is in use")
			f.reloaded(string(f.last))
		}
	}
	filesystem.WatchUntil(ctx, rereadInterval, f.path, check, func(err error) { log.Error(err, "Cannot watch the file") })
}

func (f *configFile[T]) check(ctx context.Context) (changed bool, err error) {
	data, err := safepath.ReadFile(f.path, safepath.ConfigSize)
	if err != nil || bytes.Equal(data, f.last) {
		return false, err
	}
	config, err := f.parse(data)
	if err != nil {
		f.last = data
		return false, err
	}
	if err := f.install(ctx, config); err != nil {
		return false, err
	}
	f.last = data
	return true, nil
}
