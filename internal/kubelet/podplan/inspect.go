package podplan

import (
	"time"

	"wherry.dev/internal/api/pods"
)

// Standing is the state of a container, for code that explains a pod to people.
type Standing struct {
	// Last is its newest instance, nil if it never had one.
	Last *Container
	// Until is when its back-off ends, zero if it is not backed off.
	Until time.Time
	// HookDone, Started and Ready say how far a running instance has got.
	HookDone, Started, Ready bool
}

// Inspect returns the state of one container of a pod.
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

// TryAgain returns when a failed op is retried, unless something changes before then.
func TryAgain(k Kind, f Failure) time.Time { return f.At.Add(retryAfter(k, f.Count)) }
