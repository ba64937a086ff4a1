package podplan

import (
	"time"

	"wherry.dev/internal/api/pods"
)

// Standing is where a container stands, for those who explain a pod to people.
type Standing struct {
	// Last is its newest instance, nil when it never had one.
	Last *Container
	// Until it is not started again, zero when it is not backed off.
	Until time.Time
	// HookDone, Started and Ready tell of a running instance how far it got.
	HookDone, Started, Ready bool
}

// Inspect tells where a container of a pod stands.
func Inspect(in *Input, name string) Standing {
	v := newView(in)
	spec := pods.FindContainer(in.Pod, name)
	s := Standing{Last: v.last(name)}
	if s.Last == nil || spec == nil {
		return s
	}
	if s.Last.State == Exited {
		s.Until = v.crashDue(name, s.Last)
	}
	s.HookDone, s.Started, s.Ready = v.hookDone(spec, s.Last), v.started(spec, s.Last), v.ready(spec, s.Last)
	return s
}

// TryAgain is when an op that failed is tried again, unless something changes before.
func TryAgain(k Kind, f Failure) time.Time { return f.At.Add(retryAfter(k, f.Count)) }
