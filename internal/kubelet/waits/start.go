package waits

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
)

// starting explains what keeps the pod from being ready: first what containers need, then the
// containers in the order in which they are started.
func (r *reporter) starting() {
	if r.in.Record.Verdict == nil {
		r.wait(report.Wait{Step: "admission on node " + r.in.Pod.Spec.NodeName, Since: report.When(r.in.Record.StartTime), Next: "the kubelet decides whether the pod may run here; if room is short, once pods that are ending have released theirs; after a restart of the node agent, once the plugins of its devices have registered again"})
		return
	}
	if !r.started() {
		r.ground()
	}
	r.stale()
	pod := r.in.Pod
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if r.container(c, true) && !r.started() {
			return // it is not yet the turn of the ones after it
		}
	}
	for i := range pod.Spec.Containers {
		r.container(&pod.Spec.Containers[i], false)
	}
}

// started reports whether an app container ever existed.
func (r *reporter) started() bool {
	for i := range r.in.Pod.Spec.Containers {
		if podplan.Inspect(r.in, r.in.Pod.Spec.Containers[i].Name).Last != nil {
			return true
		}
	}
	return false
}

// flight returns the op in flight with a key, nil if there is none.
func (r *reporter) flight(key podplan.Key) *podplan.Flight {
	for i := range r.dump.InFlight {
		if f := &r.dump.InFlight[i]; f.Op.Key() == key {
			return f
		}
	}
	return nil
}

// step explains an op that is running or has failed, and reports whether there is one.
func (r *reporter) step(kind podplan.Kind, key podplan.Key, name, doing, help string) bool {
	failure, failed := r.in.Failures[key]
	flight := r.flight(key)
	if flight == nil && !failed {
		return false
	}
	w := report.Wait{Step: name, Said: doing, Next: "it finishes"}
	if flight != nil {
		w.Since = report.When(flight.Since)
	}
	if failed {
		retry := podplan.TryAgain(kind, failure)
		w.Since, w.Said = r.failingSince(key, failure), report.Said(failure.Reason, failure.Message)
		w.Retry, w.Next = report.When(retry), help
		if failure.Fatal {
			w.Retry = nil
		}
	}
	r.wait(w)
	return true
}

// failingSince returns when the op's current series of failures began, as far as it is remembered.
func (r *reporter) failingSince(key podplan.Key, f podplan.Failure) *time.Time {
	since := f.At
	for _, t := range slices.Backward(r.dump.Transitions) {
		if t.Op == nil || t.Op.Key() != key || t.What != "done" {
			continue
		}
		if t.Err == "" {
			break
		}
		since = t.At
	}
	return report.When(since)
}

// ground explains what has to be in place before any container: cgroup, volumes and sandbox.
func (r *reporter) ground() {
	if r.in.Node.CgroupsManaged && !r.in.CgroupReady {
		r.step(podplan.EnsureCgroup, "cgroup", "the pod's cgroup", "it is being created", "the node's cgroups can be written")
	}
	for i := range r.in.Pod.Spec.Volumes {
		v := &r.in.Pod.Spec.Volumes[i]
		if !r.in.Volumes[v.Name].Mounted {
			r.step(podplan.MountVolume, podplan.VolumeKey(v.Name), "volume "+v.Name, "it is being set up", r.volumeHelp(v))
		}
	}
	for i := range r.in.Sandboxes {
		if r.in.Sandboxes[i].Ready {
			return
		}
	}
	if r.in.Failures[podplan.SandboxKey].Reason == podplan.ReasonPrepareClaims {
		r.step(podplan.RunSandbox, podplan.SandboxKey, "the devices of its resource claims", "", "the driver is on the node and prepares them; see its log")
		return
	}
	r.step(podplan.RunSandbox, podplan.SandboxKey, "the pod's sandbox and network", "it is being created",
		"the container runtime and its network (CNI) can create it; see the runtime's log on the node")
}

// stale notes which volumes of a running pod cannot be renewed.
func (r *reporter) stale() {
	for i := range r.in.Pod.Spec.Volumes {
		v := &r.in.Pod.Spec.Volumes[i]
		if f, failed := r.in.Failures[podplan.VolumeKey(v.Name)]; failed && r.in.Volumes[v.Name].Mounted {
			r.note("volume %s keeps its old content and cannot be updated: %s; it is updated when %s", v.Name, f.Message, r.volumeHelp(v))
		}
	}
}

func (r *reporter) volumeHelp(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return r.claimHelp(v, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		return r.claimHelp(v, ephemeral.VolumeClaimName(r.in.Pod, v))
	case v.NFS != nil:
		return fmt.Sprintf("server %s lets this node mount %s", v.NFS.Server, v.NFS.Path)
	case v.ISCSI != nil:
		return fmt.Sprintf("target %s gives LUN %d to this node, by portal %s", v.ISCSI.IQN, v.ISCSI.Lun, v.ISCSI.TargetPortal)
	case v.FC != nil:
		return "an adapter of this node sees the disk; see its zone in the fabric"
	case v.CSI != nil:
		return fmt.Sprintf("driver %s is on this node and mounts the volume; see its log", v.CSI.Driver)
	case v.ConfigMap != nil:
		return fmt.Sprintf("config map %q exists and has the keys that the volume names", v.ConfigMap.Name)
	case v.Secret != nil:
		return fmt.Sprintf("secret %q exists and has the keys that the volume names", v.Secret.SecretName)
	case v.Projected != nil:
		return "all the sources of the projected volume exist"
	case v.HostPath != nil:
		return fmt.Sprintf("path %s exists on the node and has the type that the volume asks for", v.HostPath.Path)
	case v.EmptyDir != nil, v.DownwardAPI != nil, v.Image != nil, v.VolumeSource == v1.VolumeSource{}:
		return "what the volume is made from exists"
	default:
		return "nothing on this node: it does not support volumes of this kind; recreate the pod without it"
	}
}

// claimHelp is about the claim as long as that is what the volume waits for, and about the volume afterwards.
func (r *reporter) claimHelp(v *v1.Volume, claim string) string {
	if failure := r.in.Failures[podplan.VolumeKey(v.Name)].Message; strings.Contains(failure, "error processing PVC") {
		return fmt.Sprintf("claim %q is bound to a volume; see: wherry explain -n %s pvc/%s", claim, r.in.Pod.Namespace, claim)
	}
	return fmt.Sprintf("this node can set up the volume that claim %q is bound to", claim)
}

// container explains one container, and reports whether it holds up those after it.
func (r *reporter) container(c *v1.Container, init bool) bool {
	where := podplan.Inspect(r.in, c.Name)
	if where.Last != nil && where.Last.State == podplan.Running {
		return r.live(c, init, where)
	}
	ended := where.Last != nil && where.Last.State == podplan.Exited
	switch {
	case ended && !pods.Restarts(r.in.Pod, c, where.Last.ExitCode):
		return false
	case ended && init && !pods.IsSidecar(c) && where.Last.ExitCode == 0:
		return false
	case ended && where.Until.After(r.now):
		r.crashed(c, where)
		return true
	}
	name := label(c, init)
	if r.image(c.Name, c.Image, "image of "+name) {
		return true
	}
	for _, v := range podplan.ImageVolumes(r.in.Pod, c) {
		if r.image(podplan.VolumeImage(v.Name), v.Image.Reference, fmt.Sprintf("image of volume %s, for %s", v.Name, name)) {
			return true
		}
	}
	return r.step(podplan.CreateContainer, podplan.ContainerKey(c.Name), name, "it is being created or started", r.createHelp(c)) ||
		init
}

func label(c *v1.Container, init bool) string {
	switch {
	case init && pods.IsSidecar(c):
		return "sidecar " + c.Name
	case init:
		return "init container " + c.Name
	default:
		return "container " + c.Name
	}
}

// crashed explains a container that is backed off.
func (r *reporter) crashed(c *v1.Container, where podplan.Standing) {
	last := where.Last
	text := fmt.Sprintf("it ended with exit code %d%s", last.ExitCode, report.Details(last.Reason, last.Message))
	if last.Attempt > 0 {
		text += fmt.Sprintf("; restarts: %d", last.Attempt)
	}
	r.wait(report.Wait{
		Step: "back-off of container " + c.Name, Since: report.When(last.Finished), Said: text, Retry: report.When(where.Until),
		Next: fmt.Sprintf("the back-off is over; to see why it exits: kubectl logs -n %s %s -c %s --previous", r.in.Pod.Namespace, r.in.Pod.Name, c.Name),
	})
}

// live explains a running container, and reports whether it holds up those after it.
func (r *reporter) live(c *v1.Container, init bool, where podplan.Standing) bool {
	last, name := where.Last, label(c, init)
	if f := r.flight(podplan.StopKey(last.ID)); f != nil {
		r.wait(report.Wait{
			Step: "end of " + name, Since: report.When(f.Since), Said: f.Op.Message, Retry: nil,
			Next: fmt.Sprintf("it ends, or is killed at %s", f.Op.Deadline.UTC().Format("15:04:05 UTC")),
		})
		return init
	}
	switch {
	case !where.HookDone:
		r.wait(report.Wait{Step: "postStart hook of " + name, Since: report.When(last.Started), Said: "it has not returned", Next: "the hook returns; if it fails, the container is killed"})
	case !where.Started:
		r.probe(c, name, "Startup", c.StartupProbe, last, "; after %d failures in a row the container is killed")
	case init && !pods.IsSidecar(c):
		r.wait(report.Wait{Step: name, Since: report.When(last.Started), Said: "it runs", Next: "it ends with exit code 0; the containers after it wait for that"})
	case !where.Ready:
		r.probe(c, name, "Readiness", c.ReadinessProbe, last, "")
		return false
	default:
		return false
	}
	return true
}

// probe explains a probe that does not pass.
func (r *reporter) probe(c *v1.Container, name, kind string, p *v1.Probe, last *podplan.Container, or string) {
	w := report.Wait{
		Step: strings.ToLower(kind) + " probe of " + name, Since: report.When(last.Started), Said: "it has not passed yet",
		Next: "the probe passes (" + probeText(p) + ")",
	}
	w.Event = &report.Event{Reason: "Unhealthy", Container: c.Name, Text: kind + " probe", Since: last.Started.Add(-time.Second)}
	if or != "" && p != nil {
		w.Next += fmt.Sprintf(or, max(p.FailureThreshold, 1))
	}
	r.wait(w)
}

// probeText describes in short what a probe does.
func probeText(p *v1.Probe) string {
	if p == nil {
		return "none"
	}
	every := fmt.Sprintf(", every %ds", max(p.PeriodSeconds, 1))
	switch {
	case p.Exec != nil:
		return "exec " + strings.Join(p.Exec.Command, " ") + every
	case p.HTTPGet != nil:
		return fmt.Sprintf("GET %s on port %s", p.HTTPGet.Path, p.HTTPGet.Port.String()) + every
	case p.TCPSocket != nil:
		return "connect to port " + p.TCPSocket.Port.String() + every
	case p.GRPC != nil:
		return fmt.Sprintf("gRPC health on port %d", p.GRPC.Port) + every
	default:
		return "probe" + every
	}
}

// image explains the pull of a container's or a volume's image.
func (r *reporter) image(owner, image, name string) bool {
	key := podplan.ImageKey(owner, image)
	return r.step(podplan.PullImage, key, name, fmt.Sprintf("image %q is being pulled", image), imageHelp(image, r.in.Failures[key].Reason))
}

func imageHelp(image, reason string) string {
	switch reason {
	case podplan.ReasonErrImageNeverPull:
		return fmt.Sprintf("image %q is imported on the node (wherry image import), or imagePullPolicy allows a pull", image)
	case podplan.ReasonInvalidImageName:
		return fmt.Sprintf("the image's name %q is corrected", image)
	case podplan.ReasonRegistryUnavailable:
		return "the registry answers again"
	default:
		return fmt.Sprintf("a pull of %q succeeds: its name and tag are right, the registry can be reached, and the pod may pull it (imagePullSecrets)", image)
	}
}

func (r *reporter) createHelp(c *v1.Container) string {
	switch r.in.Failures[podplan.ContainerKey(c.Name)].Reason {
	case podplan.ReasonCreateConfigError:
		return "what the container's spec refers to (config maps, secrets, users) exists"
	case podplan.ReasonRunContainerError:
		return "its command can be started: it is in the image and executable"
	default:
		return "the container runtime can create it; see its message"
	}
}
