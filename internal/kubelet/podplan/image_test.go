package podplan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// imagePod mounts an image into its first container only.
func imagePod() *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy: v1.RestartPolicyAlways,
		Volumes:       []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "registry/data"}}}},
		Containers: []v1.Container{
			{Name: "a", Image: "busybox", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}},
			{Name: "b", Image: "busybox"},
		},
	}}
}

func wants(p Plan, kind Kind, name string) bool {
	for _, op := range p.Ops {
		if op.Kind == kind && op.Name == name {
			return true
		}
	}
	return false
}

func TestImageVolumeHoldsOnlyWhoMountsIt(t *testing.T) {
	now := time.Unix(1000, 0)
	in := Input{
		Pod: imagePod(), Record: Record{Verdict: &Verdict{Admitted: true}},
		Sandboxes: []Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}}}, Images: map[string]Image{},
	}
	p := Next(in, now)
	for _, name := range []string{"a", "b", VolumeImage("data")} {
		if !wants(p, PullImage, name) {
			t.Errorf("the image of %s is not pulled: %+v", name, p.Ops)
		}
	}
	if wants(p, MountVolume, "data") {
		t.Error("an image is mounted like a folder of the node")
	}
	in.Images["a"], in.Images["b"] = Image{Name: "busybox", Ref: "sha256:1"}, Image{Name: "busybox", Ref: "sha256:1"}
	in.Failures = map[Key]Failure{ImageKey(VolumeImage("data"), in.Pod.Spec.Volumes[0].Image.Reference): {Count: 1, At: now, Reason: ReasonErrImagePull, Message: "no such image"}}
	p = Next(in, now)
	if wants(p, CreateContainer, "a") || !wants(p, CreateContainer, "b") {
		t.Errorf("ops: %+v", p.Ops)
	}
	for after, reason := range map[time.Duration]string{0: ReasonErrImagePull, time.Minute: ReasonImagePullBackOff} {
		st := Status(in, now.Add(after))
		if got := WaitingReason(&st, "a"); got != reason {
			t.Errorf("a waits for %s, want %s", got, reason)
		}
		if got := WaitingReason(&st, "b"); got != ReasonContainerCreating {
			t.Errorf("b waits for %s", got)
		}
	}
	in.Images[VolumeImage("data")] = Image{Name: in.Pod.Spec.Volumes[0].Image.Reference, Ref: "sha256:2"}
	if !wants(Next(in, now), CreateContainer, "a") {
		t.Error("with its image there, a is not created")
	}
}

func TestVolumeMountStatus(t *testing.T) {
	pod := imagePod()
	enabled, ifPossible := v1.RecursiveReadOnlyEnabled, v1.RecursiveReadOnlyIfPossible
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
		v1.VolumeMount{Name: "v", MountPath: "/v"}, v1.VolumeMount{Name: "w", MountPath: "/w", ReadOnly: true, RecursiveReadOnly: &ifPossible},
		v1.VolumeMount{Name: "x", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: &enabled})
	in := Input{Pod: pod, Record: Record{Verdict: &Verdict{Admitted: true}}}
	got := Status(in, time.Unix(1000, 0)).ContainerStatuses[0].VolumeMounts
	if *got[3].RecursiveReadOnly != enabled || *got[2].RecursiveReadOnly != v1.RecursiveReadOnlyDisabled {
		t.Errorf("before it runs: %+v", got)
	}
	in.Containers = []Container{{
		ID: "1", Name: "a", State: Running, StopSignal: v1.SIGQUIT, User: &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 7}},
		Mounts: []Mount{{Path: "/data", Image: "sha256:2"}, {Path: "/w", Recursive: true}, {Path: "/x", Recursive: true}},
	}}
	st := Status(in, time.Unix(1000, 0)).ContainerStatuses[0]
	got = st.VolumeMounts
	if got[0].VolumeStatus == nil || got[0].VolumeStatus.Image.ImageRef != "sha256:2" || got[1].RecursiveReadOnly != nil || got[1].ReadOnly ||
		*got[2].RecursiveReadOnly != enabled || !got[2].ReadOnly {
		t.Errorf("running: %+v", got)
	}
	if st.User.Linux.UID != 7 || *st.StopSignal != v1.SIGQUIT {
		t.Errorf("user %+v, stop signal %v", st.User, st.StopSignal)
	}
}

// A container whose image was corrected used to wait for the end of the back-off of the image that
// could not be pulled, and its status said that the new one could not be pulled.
func TestCorrectedImageIsPulledAtOnce(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, func(in *Input) {
		in.Failures[ImageKey("c", "i")] = Failure{Count: 6, At: noon, Reason: ReasonErrImagePull, Message: "not found"}
	})
	if p := Next(in, noon.Add(time.Minute)); wants(p, PullImage, "c") && !p.Ops[0].Backoff {
		t.Fatalf("ops while it is backed off: %+v", p.Ops)
	}
	in.Pod.Spec.Containers[0].Image = "better"
	p := Next(in, noon.Add(time.Minute))
	if len(p.Ops) != 1 || p.Ops[0] != (Op{Kind: PullImage, Name: "c", Image: "better"}) {
		t.Errorf("ops: %+v", p.Ops)
	}
	if st := Status(in, noon.Add(time.Minute)); WaitingReason(&st, "c") != ReasonContainerCreating {
		t.Errorf("it waits for %+v", st.ContainerStatuses[0].State)
	}
}

// A pod whose image was changed before its container was created used to get a container of the old
// image, under the name of the new one.
func TestImageChangedBeforeTheContainerIsMade(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, func(in *Input) {
		in.Images["c"] = Image{Name: "i", Ref: "sha256:1"}
	})
	if p := Next(in, noon); !wants(p, CreateContainer, "c") {
		t.Fatalf("ops: %+v", p.Ops)
	}
	in.Pod.Spec.Containers[0].Image = "better"
	if p := Next(in, noon); !wants(p, PullImage, "c") || wants(p, CreateContainer, "c") {
		t.Errorf("ops: %+v", p.Ops)
	}
}
