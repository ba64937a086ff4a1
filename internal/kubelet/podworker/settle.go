package podworker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"wherry.dev/internal/kubelet/podplan"
)

// settle takes over the results of the ops that ended since the last step.
func (w *Worker) settle() {
	w.mu.Lock()
	outcomes := w.outcomes
	w.outcomes = nil
	w.mu.Unlock()
	for _, o := range outcomes {
		f := w.flights[o.key]
		delete(w.flights, o.key)
		t := Transition{What: "done", Op: &f.Op}
		if o.res.Err != nil {
			t.Err = o.res.Err.Error()
		}
		w.note(t)
		if o.res.Err == nil && w.vain(f.Op) {
			o.res.Err = fmt.Errorf("%s succeeded several times but had no effect", f.Op.Kind)
		}
		switch {
		case o.res.Err == nil:
			delete(w.failures, o.key)
			w.achieved(f, o.res)
		case f.Canceled:
			w.listed = false // who knows how far it got
		default:
			w.failed(f, o.res)
		}
	}
}

// vainAfter is how often an op with an observable effect may succeed before it counts as failed, so
// that a runtime that says yes and does nothing is not called in a tight loop.
const vainAfter = 3

const keptRepeated = 100

// repeated is an op that succeeded, and how many times in a row.
type repeated struct {
	op    podplan.Op
	times int
}

// vain reports whether an op has succeeded again and again and is still wanted.
func (w *Worker) vain(op podplan.Op) bool {
	switch op.Kind {
	case podplan.StartContainer, podplan.StopContainer, podplan.RemoveContainer, podplan.StopSandbox, podplan.RemoveSandbox:
	default:
		return false
	}
	key := op.Key()
	op.Deadline = time.Time{}
	last := w.repeated[key]
	if last.op != op {
		last = repeated{op: op}
	}
	last.times++
	if len(w.repeated) >= keptRepeated {
		clear(w.repeated) // most are of instances that are long gone
	}
	w.repeated[key] = last
	return last.times > vainAfter
}

// achieved notes what a successful op leaves in memory. What the runtime itself reports is not
// noted, but observed.
func (w *Worker) achieved(f *flight, res podplan.Result) {
	op := f.Op
	switch op.Kind {
	case podplan.EnsureCgroup:
		w.cgroup = true
	case podplan.RemoveCgroup:
		w.cgroup = false
	case podplan.MountVolume:
		w.volumes[op.Name] = podplan.Volume{Mounted: true, Objects: op.Objects, RefreshAt: res.RefreshAt}
	case podplan.ClearVolumes:
		clear(w.volumes)
	case podplan.RunSandbox:
		if !slices.Contains(w.sandboxes, res.Sandbox) { // a listing may have added it already
			w.sandboxes = append(w.sandboxes, res.Sandbox)
		}
	case podplan.PullImage:
		w.pulling += time.Since(f.Since)
		w.images[op.Name] = podplan.Image{Attempt: op.Attempt, Name: op.Image, Ref: res.Image}
	case podplan.CreateContainer:
		delete(w.images, op.Name)
	case podplan.RunHook:
		w.hooks[op.ID] = podplan.Hook{Done: res.HookFailed == "", Failed: res.HookFailed}
	case podplan.RunPreStop:
		w.preStops[op.ID] = op
	case podplan.ResizePod:
		w.resized = res.Resized
	case podplan.RemoveContainer:
		delete(w.messages, op.ID)
		delete(w.hooks, op.ID)
		delete(w.preStops, op.ID)
		delete(w.failures, podplan.ContainerKey(op.Name))
	case podplan.Forget:
		w.forgotten = true
	}
}

// maxMessage is the longest failure message that is reported, in bytes.
const maxMessage = 8 << 10

// shortened bounds a message, which may quote foreign text: the API server refuses a status of
// several megabytes, and nothing more would be heard of the pod.
func shortened(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	half := maxMessage / 2
	return strings.ToValidUTF8(message[:half], "") + " … " + strings.ToValidUTF8(message[len(message)-half:], "")
}

// failed notes a failure for the plan's back-off and for the status.
func (w *Worker) failed(f *flight, res podplan.Result) {
	op := f.Op
	key := op.Key()
	old := w.failures[key]
	if op.Backoff { // a look for the image says nothing new about the pull that failed
		old.LookedAt = time.Now().Round(0)
		w.failures[key] = old
		return
	}
	message := res.Message
	if message == "" {
		message = res.Err.Error()
	}
	count := old.Count + 1
	if op.Attempt != old.Attempt && op.Kind != podplan.PullImage {
		count = 1
	}
	w.failures[key] = podplan.Failure{
		Count: count, At: time.Now().Round(0), Reason: res.Reason, Message: shortened(message),
		Objects: f.objects, Attempt: op.Attempt, Fatal: res.Fatal,
	}
	if res.ImageGone {
		clear(w.images) // others may have gone with it
	}
	switch op.Kind {
	case podplan.RunSandbox, podplan.StopSandbox, podplan.RemoveSandbox, podplan.CreateContainer:
		w.listed = false
	}
}
