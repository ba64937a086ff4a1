package container

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/inspect"
)

// Summary returns its item of a list.
func (c *Container) Summary() *runtimeapi.Container {
	cfg := c.Config()
	return &runtimeapi.Container{
		Id: c.ID, PodSandboxId: c.rec.SandboxID, Metadata: cfg.GetMetadata(), Image: cfg.GetImage(),
		ImageRef: c.rec.ImageID, ImageId: c.rec.ImageID, State: c.current().state(), CreatedAt: c.rec.CreatedAt,
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
	}
}

// Status returns everything known about it.
func (c *Container) Status() *runtimeapi.ContainerStatus {
	cfg, st := c.Config(), c.current()
	return &runtimeapi.ContainerStatus{
		Id: c.ID, Metadata: cfg.GetMetadata(), State: st.state(), CreatedAt: c.rec.CreatedAt,
		StartedAt: st.StartedAt, FinishedAt: st.EndedAt, ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: c.imageSpec(), ImageRef: c.imageRef(), ImageId: c.rec.ImageID,
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), Mounts: c.mounts(), LogPath: c.rec.Log,
		Resources:  &runtimeapi.ContainerResources{Linux: st.Resources.M},
		User:       &runtimeapi.ContainerUser{Linux: user(st)},
		StopSignal: criSignal(c.rec.StopSignal),
	}
}

// mounts returns the mounts that were asked for, with the digest of each image among them.
func (c *Container) mounts() []*runtimeapi.Mount {
	all := slices.Clone(c.Config().GetMounts())
	for i, id := range c.rec.Volumes {
		if id != "" {
			all[i] = proto.CloneOf(all[i])
			all[i].Image.ImageRef = id
		}
	}
	return all
}

func user(st State) *runtimeapi.LinuxContainerUser {
	u := &runtimeapi.LinuxContainerUser{Uid: int64(st.User.UID), Gid: int64(st.User.GID)}
	for _, g := range st.User.AdditionalGids {
		u.SupplementalGroups = append(u.SupplementalGroups, int64(g))
	}
	return u
}

// criSpelling turns a real-time signal into CRI's spelling: RTMINPLUS1.
var criSpelling = strings.NewReplacer("+", "PLUS", "-", "MINUS")

// criSignal returns CRI's value for a signal.
func criSignal(name string) runtimeapi.Signal {
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+criSpelling.Replace(name)])
}

// imageSpec names the image by a tag if it has one, as the pod did.
func (c *Container) imageSpec() *runtimeapi.ImageSpec {
	asked := c.Config().GetImage()
	spec := &runtimeapi.ImageSpec{Image: asked.GetImage(), UserSpecifiedImage: asked.GetUserSpecifiedImage(), RuntimeHandler: asked.GetRuntimeHandler()}
	if img, ok := c.env.Images.Lookup(c.rec.ImageID); ok && len(img.Tags) > 0 {
		spec.Image = img.Tags[0]
	}
	return spec
}

// imageRef returns the image's reference by digest if it came from a registry, else its ID.
func (c *Container) imageRef() string {
	if img, ok := c.env.Images.Lookup(c.rec.ImageID); ok && len(img.Digests) > 0 {
		return img.Digests[0]
	}
	return c.rec.ImageID
}

// Info returns what `crictl inspect` shows in addition to the status.
func (c *Container) Info() (map[string]string, error) {
	return inspect.Pack("info", map[string]any{
		"sandboxID":   c.rec.SandboxID,
		"pid":         c.PID(),
		"removing":    false, // a container that is being removed no longer answers
		"snapshotter": inspect.Snapshotter,
		"snapshotKey": c.ID,
		"runtimeType": c.runtime.Type,
		"privileged":  c.Config().GetLinux().GetSecurityContext().GetPrivileged(),
		"cgroup":      c.rec.Cgroup,
		"bundle":      c.bundle.Dir,
		"rootfs":      c.rootfs(),
		"config":      c.Config(),
		"runtimeSpec": c.readSpec(),
	})
}

// PID returns the PID of the container's first process, or 0 if it has exited.
func (c *Container) PID() int {
	st := c.current()
	if st.EndedAt != 0 {
		return 0
	}
	return st.PID
}
