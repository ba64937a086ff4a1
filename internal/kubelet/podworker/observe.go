package podworker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/record"
)

// Runtime is the part of the CRI that reports what exists.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
}

// observeTimeout limits one look at one pod, so that a runtime that hangs holds up only the pods
// that it hangs for.
const observeTimeout = 2 * time.Minute

// observe gathers everything that a plan depends on.
func (w *Worker) observe(ctx context.Context) (podplan.Input, error) {
	if err := w.loadRecord(ctx); err != nil {
		return podplan.Input{}, err
	}
	in := podplan.Input{Record: w.record, Node: w.deps.Node(), CgroupReady: w.cgroup, Forgotten: w.forgotten, Resized: w.resized}
	w.mu.Lock()
	in.Pod, in.Absent, in.Objects = w.pod, w.absent || w.removed, w.objects
	static, eviction, reclaim := w.static, w.eviction, w.reclaim
	if w.listDue {
		w.listed, w.listDue = false, false
	}
	w.mu.Unlock()
	in.Record.Static = in.Record.Static || static
	in.Record.Name, in.Record.Namespace, in.Record.Grace = in.Pod.Name, in.Pod.Namespace, pods.Grace(in.Pod)
	in.Record.Ending = endingNow(&in, eviction, reclaim)
	in.Absent = in.Absent || in.Record.Removed()
	if in.Absent && in.Record.Static {
		w.deps.Status.Drop(w.uid) // the next mirror shows the pod's next life
	}
	if !w.statusKnown {
		w.status, w.statusKnown = in.Pod.Status, true
	}
	if static && !w.mirrorKnown {
		w.earlier, w.mirrorKnown = w.deps.Mirror(w.uid)
		if w.earlier != nil {
			w.status.Conditions = w.earlier.DeepCopy().Conditions // with the times of their transitions
		}
	}
	in.Reported, in.Earlier = w.reported(in.Pod), w.earlier
	if err := w.observeRuntime(ctx, &in); err != nil {
		w.listed = false
		return in, err
	}
	in.Volumes, in.Images, in.Hooks = maps.Clone(w.volumes), maps.Clone(w.images), maps.Clone(w.hooks)
	in.PreStops = maps.Clone(w.preStops)
	in.Failures = maps.Clone(w.failures)
	in.InFlight = make(map[podplan.Key]podplan.Flight, len(w.flights))
	for k, f := range w.flights {
		in.InFlight[k] = f.Flight
	}
	if v := in.Record.Verdict; v != nil && v.Devices != nil && w.deps.Health != nil {
		in.DeviceHealth = w.deps.Health(v.Devices)
	}
	if w.deps.ClaimHealth != nil && len(in.Pod.Spec.ResourceClaims) > 0 {
		in.ClaimHealth = w.deps.ClaimHealth(in.Pod)
	}
	if w.deps.VolumeHealth != nil {
		in.VolumeHealth = w.deps.VolumeHealth(in.Pod, in.Reported.VolumeHealth)
	}
	if w.deps.Prober != nil {
		in.Probes = w.deps.Prober.Results(w.uid)
	}
	return in, nil
}

// endingNow returns how the pod ends, nil if it does not: from the record, and from what the node
// wants.
func endingNow(in *podplan.Input, eviction *podplan.Ending, reclaim bool) *podplan.Ending {
	e := in.Record.Ending
	switch {
	case eviction != nil && e == nil:
		e = eviction
	case eviction != nil:
		e = changed(e, e.Hasten(in.Pod, *eviction))
	}
	if reclaim && e != nil {
		now := *e
		now.Reclaim = true
		e = changed(e, now)
	}
	return e
}

// changed returns the old pointer if nothing changed: records are compared to decide what to write.
func changed(was *podplan.Ending, now podplan.Ending) *podplan.Ending {
	if *was == now {
		return was
	}
	return &now
}

// reported returns our newest status, with the conditions of others as the source has them now.
func (w *Worker) reported(pod *v1.Pod) v1.PodStatus {
	st := w.status // what it points to never changes
	st.Conditions = slices.Clone(st.Conditions)
	if !pods.IsTerminal(st.Phase) && pods.IsTerminal(pod.Status.Phase) {
		st.Phase, st.Reason, st.Message = pod.Status.Phase, pod.Status.Reason, pod.Status.Message
	}
	for _, c := range pod.Status.Conditions {
		if !podplan.OwnsCondition(c.Type) {
			i := slices.IndexFunc(st.Conditions, func(o v1.PodCondition) bool { return o.Type == c.Type })
			if i < 0 {
				st.Conditions = append(st.Conditions, c)
			} else {
				st.Conditions[i] = c
			}
		}
	}
	st.ResourceClaimStatuses = pod.Status.ResourceClaimStatuses
	st.ExtendedResourceClaimStatus = pod.Status.ExtendedResourceClaimStatus
	return st
}

// loadRecord reads the record once. If it is corrupt, what it held is observed or decided again.
func (w *Worker) loadRecord(ctx context.Context) error {
	if w.recorded {
		return nil
	}
	r, err := w.deps.Records.Read(w.uid)
	if _, corrupt := errors.AsType[*record.CorruptError](err); corrupt {
		klog.FromContext(ctx).Error(err, "The pod's record is lost; admission and allocations are decided again")
		err = nil
	}
	if err != nil {
		return err
	}
	w.record, w.recorded = r, true
	w.notAhead(time.Now())
	return nil
}

// observeRuntime asks the runtime for the pod's sandboxes and containers: by ID as
// long as the IDs are known, by label after anything that may have created others.
func (w *Worker) observeRuntime(ctx context.Context, in *podplan.Input) error {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	if !w.listed {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	for _, id := range slices.Clone(w.sandboxes) {
		resp, err := w.deps.Runtime.PodSandboxStatus(ctx, id, false)
		if status.Code(err) == codes.NotFound {
			w.sandboxes = slices.DeleteFunc(w.sandboxes, func(s string) bool { return s == id })
			continue
		}
		if err != nil {
			return fmt.Errorf("status of sandbox %s: %w", id, err)
		}
		in.Sandboxes = append(in.Sandboxes, sandboxOf(resp.Status))
		statuses, err := w.containers(ctx, id, resp)
		if err != nil {
			return err
		}
		for _, st := range statuses {
			in.Containers = append(in.Containers, w.containerOf(in.Pod, id, st))
		}
	}
	return nil
}

func (w *Worker) list(ctx context.Context) error {
	found, err := w.deps.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{pods.LabelPodUID: string(w.uid)},
	})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	w.sandboxes = w.sandboxes[:0]
	for _, s := range found {
		w.sandboxes = append(w.sandboxes, s.Id)
	}
	w.listed = true
	return nil
}

// containers returns the containers of a sandbox: from the sandbox's status if the runtime has
// events, otherwise one by one.
func (w *Worker) containers(ctx context.Context, id string, resp *runtimeapi.PodSandboxStatusResponse) ([]*runtimeapi.ContainerStatus, error) {
	if resp.Timestamp != 0 || len(resp.ContainersStatuses) > 0 {
		return resp.ContainersStatuses, nil
	}
	list, err := w.deps.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{PodSandboxId: id})
	if err != nil {
		return nil, fmt.Errorf("list containers of sandbox %s: %w", id, err)
	}
	out := make([]*runtimeapi.ContainerStatus, 0, len(list))
	for _, c := range list {
		st, err := w.deps.Runtime.ContainerStatus(ctx, c.Id, false)
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of container %s: %w", c.Id, err)
		}
		out = append(out, st.Status)
	}
	return out, nil
}

func sandboxOf(st *runtimeapi.PodSandboxStatus) podplan.Sandbox {
	s := podplan.Sandbox{
		ID: st.Id, Attempt: st.GetMetadata().GetAttempt(), Created: unix(st.CreatedAt),
		Ready: st.State == runtimeapi.PodSandboxState_SANDBOX_READY,
	}
	if ip := st.GetNetwork().GetIp(); ip != "" {
		s.IPs = append(s.IPs, ip)
		for _, more := range st.Network.AdditionalIps {
			s.IPs = append(s.IPs, more.Ip)
		}
	}
	return s
}

func (w *Worker) containerOf(pod *v1.Pod, sandbox string, st *runtimeapi.ContainerStatus) podplan.Container {
	c := podplan.Container{
		ID: st.Id, Name: st.GetMetadata().GetName(), Attempt: st.GetMetadata().GetAttempt(), SandboxID: sandbox,
		Created: unix(st.CreatedAt), Started: unix(st.StartedAt), Finished: unix(st.FinishedAt),
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: st.GetImage().GetUserSpecifiedImage(), ImageRef: st.ImageRef,
		Hash: st.Annotations[pods.AnnotationHash], Mounts: mountsOf(st.Mounts), StopSignal: signalOf(st.StopSignal),
	}
	if c.Image == "" {
		c.Image = st.GetImage().GetImage()
	}
	if n, err := strconv.ParseUint(st.Annotations[pods.AnnotationRestartCount], 10, 32); err == nil {
		c.Attempt = max(c.Attempt, uint32(n))
	}
	switch st.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State = podplan.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.State = podplan.Running
		c.User = userOf(st.User)
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.State, c.WaitsFrom = podplan.Exited, w.waitsFrom(&c, time.Now())
		c.User = userOf(st.User)
		c.Message = w.finalMessage(&c, messagePolicy(pod, st), st.LogPath)
	default:
		c.State = podplan.Unknown
	}
	return c
}

// messagePolicy returns the policy that a container was created with: an orphan's pod has no spec.
func messagePolicy(pod *v1.Pod, st *runtimeapi.ContainerStatus) v1.TerminationMessagePolicy {
	if p := st.Annotations[pods.AnnotationMessagePolicy]; p != "" {
		return v1.TerminationMessagePolicy(p)
	}
	if spec := pods.FindContainer(pod, st.GetMetadata().GetName()); spec != nil {
		return spec.TerminationMessagePolicy
	}
	return v1.TerminationMessageReadFile
}

// finalMessage reads an instance's termination message once: it cannot change. What the runtime
// says about the end comes first.
func (w *Worker) finalMessage(c *podplan.Container, policy v1.TerminationMessagePolicy, logPath string) string {
	if m, ok := w.messages[c.ID]; ok {
		return m
	}
	m := c.Message
	if w.deps.FinalMessage != nil {
		if own := w.deps.FinalMessage(w.uid, c, policy, logPath); m != "" && own != "" {
			m += ": " + own
		} else {
			m += own
		}
	}
	w.messages[c.ID] = m
	return m
}

// mountsOf returns what only the runtime knows about mounts.
func mountsOf(all []*runtimeapi.Mount) []podplan.Mount {
	var out []podplan.Mount
	for _, m := range all {
		if image := m.GetImage(); image != nil || m.GetRecursiveReadOnly() {
			ref := image.GetImageRef()
			if ref == "" {
				ref = image.GetImage()
			}
			out = append(out, podplan.Mount{Path: m.ContainerPath, Image: ref, Recursive: m.GetRecursiveReadOnly()})
		}
	}
	return out
}

// signalOf returns a signal's name in the API: SIGRTMIN+1 where the CRI has SIGRTMINPLUS1.
func signalOf(s runtimeapi.Signal) v1.Signal {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	return v1.Signal(strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name))
}

func userOf(u *runtimeapi.ContainerUser) *v1.ContainerUser {
	if u.GetLinux() == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
		UID: u.Linux.Uid, GID: u.Linux.Gid, SupplementalGroups: u.Linux.SupplementalGroups,
	}}
}

func unix(nanos int64) time.Time {
	if nanos <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}
