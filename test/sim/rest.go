package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// atRest checks that a pod that is wanted has come to where it should be, and that a restart of the
// kubelet does not disturb it.
func (l *life) atRest() {
	n := l.current.Load()
	snap, ok := n.table.Get(l.uid)
	if !ok {
		l.hist.fail(errors.New("the pod is wanted and has no worker"))
		return
	}
	if snap.At.IsZero() || snap.Input.Pod == nil {
		l.hist.fail(errors.New("the pod did not come to rest: its worker has not looked at it"))
		return
	}
	if err := settled(snap, time.Now()); err != nil {
		l.hist.fail(fmt.Errorf("the pod did not come to rest: %w; it waits for %q", err, snap.Plan.Waiting))
		return
	}
	pod := l.want()
	if err := l.limited(&snap); err != nil {
		l.hist.fail(err)
	}
	if v := snap.Input.Record.Verdict; v != nil && v.Reason != refusalOf(snap.Pod, l.refusal(l.uid)) {
		l.hist.fail(fmt.Errorf("the node said %q of %s, not %q", v.Reason, l.uid, l.refusal(l.uid)))
	}
	if appThere(snap) && snap.Input.Record.Ending == nil && !pods.IsTerminal(snap.Status.Phase) {
		if err := l.shown(snap.Pod); err != nil {
			l.hist.fail(err)
		}
	}
	if e := snap.Input.Record.Ending; e != nil && time.Since(e.Since) < 2*time.Minute {
		return // its deadline came just now
	}
	if shown, _ := l.api.get(); shown == nil || staticOf(shown) != l.uid {
		l.hist.fail(fmt.Errorf("the API server does not show %s", l.uid))
	} else if shown.Status.Phase != snap.Status.Phase {
		l.hist.fail(fmt.Errorf("the API server has phase %q, the kubelet %q", shown.Status.Phase, snap.Status.Phase))
	} else if err := foreign(&shown.Status); err != nil {
		l.hist.fail(err)
	}
	l.down()
	l.up()
	if !l.pass(3*time.Minute) || l.restless(pod) {
		return
	}
	if after := l.want(); !l.static && restText(after) != restText(pod) {
		l.hist.fail(fmt.Errorf("a restart of the kubelet changed the status from %s to %s", statusText(&pod.Status), statusText(&after.Status)))
	}
}

// foreign finds what somebody else wrote and the node has not put right.
func foreign(st *v1.PodStatus) error {
	for _, c := range st.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionUnknown {
			return errors.New("the API server has another's condition Ready still")
		}
	}
	return nil
}

// limited checks that whatever runs has the limits that were allocated to it.
func (l *life) limited(s *podworker.Snapshot) error {
	if s.Input.Record.Verdict == nil || s.Input.Record.Ending != nil {
		return nil
	}
	pod := podplan.WithAllocated(s.Pod, s.Input.Record.Verdict)
	for i := range s.Input.Containers {
		c := &s.Input.Containers[i]
		spec := pods.FindContainer(pod, c.Name)
		if c.State != podplan.Running || spec == nil || spec.Resources.Limits == nil {
			continue
		}
		want, has := spec.Resources.Limits, l.rt.Resources(c.ID)
		if memory := want.Memory().Value(); has.GetMemoryLimitInBytes() != memory {
			return fmt.Errorf("%s may use %d bytes of memory, not %d", c.ID, has.GetMemoryLimitInBytes(), memory)
		}
		if quota := max(want.Cpu().MilliValue()*100, 1000); has.GetCpuQuota() != quota {
			return fmt.Errorf("%s may use %d µs of CPU in 100 ms, not %d", c.ID, has.GetCpuQuota(), quota)
		}
	}
	return nil
}

// checkDump checks that what /debug/pods/UID shows, written as JSON and read back, leads to the
// same plan and status.
func (l *life) checkDump() {
	n := l.current.Load()
	snap, ok := n.table.Get(l.uid)
	if !ok || snap.At.IsZero() {
		return
	}
	if err := sameAgain(snap.Dump()); err != nil {
		l.hist.fail(err)
	}
}

func sameAgain(before podworker.Dump) error {
	data, err := json.Marshal(before)
	if err != nil {
		return err
	}
	var d podworker.Dump
	if err := json.Unmarshal(data, &d); err != nil {
		return err
	}
	plan, err := json.Marshal(podplan.Next(d.Input, d.At))
	if err != nil {
		return err
	}
	if want, err := json.Marshal(before.Plan); err != nil || string(plan) != string(want) {
		return fmt.Errorf("a dump leads to the plan\n%s\nwhere the worker had\n%s, %w", plan, want, err)
	}
	st := podplan.Status(d.Input, d.At)
	if was := statusText(&before.Status); !d.Input.Absent && !d.Input.Forgotten && statusText(&st) != was {
		return fmt.Errorf("a dump leads to the status %s where the worker had %s", statusText(&st), was)
	}
	return nil
}

// restText returns what a restart of the kubelet must not change. The reason why an ephemeral
// container of an ended pod never ran is not kept.
func restText(p *v1.Pod) string {
	st := p.Status.DeepCopy()
	st.EphemeralContainerStatuses = nil
	return statusText(st)
}

// restless reports whether a container of the pod, or a pull, fails by design, so that its status
// changes now and then.
func (l *life) restless(pod *v1.Pod) bool {
	if pods.CanRestartAll(pod) {
		return true
	}
	for c := range pods.Containers(&pod.Spec) {
		if c.Command[0] == crasher || c.Command[0] == broken || c.Command[0] == job || stuck(pod, c) || ill(c) {
			return true
		}
	}
	return pod.Spec.ActiveDeadlineSeconds != nil || sandboxless(pod)
}

// sandboxless reports whether a pod never has a sandbox.
func sandboxless(pod *v1.Pod) bool {
	c := pod.Spec.RuntimeClassName
	return c != nil && (*c == classLost || *c == classOrphan)
}

// stuck reports whether a container may never get its first instance.
func stuck(pod *v1.Pod, c *v1.Container) bool {
	return c.Command[0] == broken || refused(c) || imageless(pod, c) || configless(c)
}

// imageless reports whether there may be no image for a container.
func imageless(pod *v1.Pod, c *v1.Container) bool {
	return c.Image == imageMissing || c.ImagePullPolicy == v1.PullNever ||
		c.Image == imagePrivate && !slices.ContainsFunc(pod.Spec.ImagePullSecrets, func(s v1.LocalObjectReference) bool {
			return s.Name == pullRight || s.Name == pullLate
		})
}

// configless reports whether a container wants something that never exists.
func configless(c *v1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e v1.EnvVar) bool {
		return e.Name == "MISSING" && !*e.ValueFrom.ConfigMapKeyRef.Optional
	})
}

// ill reports whether something keeps a container from running for long.
func ill(c *v1.Container) bool {
	for _, p := range []*v1.Probe{c.StartupProbe, c.LivenessProbe} {
		if p != nil && fails(p.ProbeHandler) {
			return true
		}
	}
	return c.Lifecycle != nil && hookFails(c.Lifecycle.PostStart)
}

// settled returns an error that says what about a pod, long after the last fault, is not as it
// should be.
func settled(s podworker.Snapshot, now time.Time) error {
	if pods.IsTerminal(s.Status.Phase) {
		for i := range s.Input.Containers {
			if s.Input.Containers[i].Live() {
				return fmt.Errorf("phase %s while %s lives", s.Status.Phase, s.Input.Containers[i].ID)
			}
		}
		return nil
	}
	if e := s.Input.Record.Ending; e != nil {
		if now.Sub(e.Since) < 2*time.Minute {
			return nil // its deadline came just now
		}
		return fmt.Errorf("it has been ending since %v", e.Since)
	}
	if r := s.Input.Record.Resize; r != nil && r.Active != nil {
		return fmt.Errorf("the resize of generation %d is not done", *r.Active)
	}
	if sandboxless(s.Pod) || slices.ContainsFunc(s.Pod.Spec.Volumes, func(v v1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == configMissing }) {
		return explained(s)
	}
	if pods.CanRestartAll(s.Pod) {
		return nil // each exit resets it
	}
	healthy := true
	for i := range s.Pod.Spec.InitContainers {
		c := &s.Pod.Spec.InitContainers[i]
		on, err := turn(s, c, now)
		if err != nil {
			return err
		}
		healthy = healthy && on && !ill(c)
		if !on {
			return explained(s)
		}
	}
	for i := range s.Pod.Spec.Containers {
		c := &s.Pod.Spec.Containers[i]
		on, err := turn(s, c, now)
		if err != nil {
			return err
		}
		healthy = healthy && on && !ill(c) && runs(s, c.Name, now) && (c.ReadinessProbe == nil || !fails(c.ReadinessProbe.ProbeHandler))
	}
	if !healthy {
		return nil
	}
	return ready(s, now)
}

// explained checks that the plan can say why a pod does not run.
func explained(s podworker.Snapshot) error {
	if len(s.Plan.Waiting) == 0 && len(s.Plan.Ops) == 0 {
		return fmt.Errorf("the pod does not run, and the plan does not say why")
	}
	return nil
}

// ready checks that a pod whose containers are all well is Ready.
func ready(s podworker.Snapshot, now time.Time) error {
	want := v1.ConditionTrue
	for i := range s.Pod.Spec.InitContainers {
		c := &s.Pod.Spec.InitContainers[i]
		if pods.IsSidecar(c) && (!runs(s, c.Name, now) || ill(c) || c.ReadinessProbe != nil && fails(c.ReadinessProbe.ProbeHandler)) {
			return nil
		}
	}
	for _, gate := range s.Pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(s.Pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == v1.ConditionTrue
		}) {
			want = v1.ConditionFalse
		}
	}
	for _, c := range s.Status.Conditions {
		if c.Type == v1.PodReady && c.Status != want {
			return fmt.Errorf("all containers are well, but Ready is %s: %s", c.Status, c.Message)
		}
	}
	if s.Status.Phase != v1.PodRunning {
		return fmt.Errorf("all containers are well, but the phase is %s", s.Status.Phase)
	}
	return nil
}

// turn checks that a container whose turn it is runs, has ended for good, or waits for something
// worth waiting for. It reports whether the containers after it may proceed.
func turn(s podworker.Snapshot, c *v1.Container, now time.Time) (on bool, err error) {
	newest := newestOf(s, c.Name)
	init := pods.IsInit(s.Pod, c.Name)
	once := init && !pods.IsSidecar(c)
	stuck := stuck(s.Pod, c)
	switch {
	case once && appThere(s):
		return true, nil // it may be gone
	case newest == nil && configless(c) && !imageless(s.Pod, c):
		return false, saysWhy(&s.Status, c.Name)
	case newest == nil && stuck:
		return false, nil
	case newest == nil:
		return false, fmt.Errorf("it is the turn of %s, and it was not created", c.Name)
	case newest.State == podplan.Running:
		return !once && (!init || !ill(c)) || appThere(s), nil
	case stuck && (!once || newest.ExitCode != 0):
		return false, nil
	case newest.Live() && now.Sub(newest.Created) < time.Minute:
		return false, nil // it was made just now, after a back-off
	case newest.Live():
		return false, fmt.Errorf("%s is %s", c.Name, newest.State)
	case once && newest.ExitCode == 0:
		return true, nil
	case !pods.Restarts(s.Pod, c, newest.ExitCode):
		return !init, nil
	case s.Input.Node.MaxCrashWait > 0 && now.Sub(newest.Finished) > 4*time.Minute, now.Sub(newest.Finished) > 11*time.Minute: // it may wait for a sidecar that is waiting too
		return false, fmt.Errorf("%s ended %v ago and was not started again", c.Name, now.Sub(newest.Finished))
	default:
		return false, nil
	}
}

// saysWhy checks what is reported for a container whose configuration cannot be had.
func saysWhy(st *v1.PodStatus, name string) error {
	for _, c := range statuses(st) {
		if c.Name == name && (c.State.Waiting == nil || c.State.Waiting.Reason != podplan.ReasonCreateConfigError) {
			return fmt.Errorf("%s lacks an object, and is %s", name, stateText(&c))
		}
	}
	return nil
}

// runs reports whether a container has been running for a while.
func runs(s podworker.Snapshot, name string, now time.Time) bool {
	c := newestOf(s, name)
	return c != nil && c.State == podplan.Running && now.Sub(c.Started) > time.Minute
}

// newestOf returns the newest instance of a container, as the plan sees it.
func newestOf(s podworker.Snapshot, name string) *podplan.Container {
	return podplan.Inspect(&s.Input, name).Last
}

// appThere reports whether the newest sandbox has had an app container.
func appThere(s podworker.Snapshot) bool {
	box := ""
	attempt := uint32(0)
	for _, b := range s.Input.Sandboxes {
		if box == "" || b.Attempt > attempt {
			box, attempt = b.ID, b.Attempt
		}
	}
	for i := range s.Pod.Spec.Containers {
		if c := newestOf(s, s.Pod.Spec.Containers[i].Name); c != nil && c.SandboxID == box {
			return true
		}
	}
	return false
}
