package framework

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// What plugins need to say of which events they want to hear.

// Event is one of which a plugin wants to hear, if the hint (nil: always) says so.
func Event(r fwk.EventResource, a fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	return fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: r, ActionType: a}, QueueingHintFn: hint}
}

// HintShaper is a plugin whose hints about other objects say the same for many pods: those of one shape. Of these, one
// is asked about.
type HintShaper interface {
	fwk.Plugin
	HintShape(pod *v1.Pod) string
}

// EventObjects returns the objects of an event with their type. One of them may be nil.
func EventObjects[T any](oldObj, newObj any) (before, after T, err error) {
	var ok bool
	if oldObj != nil {
		if before, ok = oldObj.(T); !ok {
			return before, after, fmt.Errorf("got a %T, want a %T", oldObj, before)
		}
	}
	if newObj != nil {
		if after, ok = newObj.(T); !ok {
			return before, after, fmt.Errorf("got a %T, want a %T", newObj, after)
		}
	}
	return before, after, nil
}

// QueueWhen returns the hint for an event that helps, or does not.
func QueueWhen(helps bool) (fwk.QueueingHint, error) {
	if helps {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}
