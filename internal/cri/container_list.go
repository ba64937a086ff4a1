package cri

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListContainers lists containers, newest first.
func (s *Server) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.listContainers(req.GetFilter())}, nil
}

func (s *Server) listContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range s.matchingContainers(f) {
		out = append(out, c.summary())
	}
	return out
}

// matchingContainers returns the containers that match the filter, newest first.
func (s *Server) matchingContainers(f *runtimeapi.ContainerFilter) []*container {
	s.mu.RLock()
	all := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		all = append(all, c)
	}
	s.mu.RUnlock()
	all = slices.DeleteFunc(all, func(c *container) bool { return !c.matches(f) })
	slices.SortFunc(all, func(a, b *container) int {
		return cmp.Or(cmp.Compare(b.rec.CreatedAt, a.rec.CreatedAt), cmp.Compare(a.id, b.id))
	})
	return all
}

func (c *container) matches(f *runtimeapi.ContainerFilter) bool {
	if f == nil {
		return true
	}
	return strings.HasPrefix(c.id, f.GetId()) &&
		strings.HasPrefix(c.rec.SandboxID, f.GetPodSandboxId()) &&
		(f.GetState() == nil || f.GetState().GetState() == c.current().state()) &&
		hasLabels(c.config().GetLabels(), f.GetLabelSelector())
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (c *container) summary() *runtimeapi.Container {
	cfg := c.config()
	return &runtimeapi.Container{
		Id: c.id, PodSandboxId: c.rec.SandboxID, Metadata: cfg.GetMetadata(), Image: cfg.GetImage(),
		ImageRef: c.rec.ImageID, ImageId: c.rec.ImageID, State: c.current().state(), CreatedAt: c.rec.CreatedAt,
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
	}
}

// ContainerStatus returns everything known about a container.
func (s *Server) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: s.containerStatus(c)}
	if req.GetVerbose() {
		if resp.Info, err = s.containerInfo(c); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (s *Server) containerStatus(c *container) *runtimeapi.ContainerStatus {
	cfg, st := c.config(), c.current()
	status := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: cfg.GetMetadata(), State: st.state(), CreatedAt: c.rec.CreatedAt,
		StartedAt: st.StartedAt, FinishedAt: st.EndedAt, ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: s.imageSpec(c), ImageRef: s.imageRef(c), ImageId: c.rec.ImageID,
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), Mounts: c.mounts(), LogPath: c.rec.Log,
		Resources:  &runtimeapi.ContainerResources{Linux: st.Resources.m},
		User:       &runtimeapi.ContainerUser{Linux: user(st)},
		StopSignal: criSignal(c.rec.StopSignal),
	}
	return status
}

// mounts returns the mounts that were asked for, with the digest of each image among them.
func (c *container) mounts() []*runtimeapi.Mount {
	all := slices.Clone(c.config().GetMounts())
	for i, id := range c.rec.Volumes {
		if id != "" {
			all[i] = proto.CloneOf(all[i])
			all[i].Image.ImageRef = id
		}
	}
	return all
}

func user(st containerStatus) *runtimeapi.LinuxContainerUser {
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
func (s *Server) imageSpec(c *container) *runtimeapi.ImageSpec {
	asked := c.config().GetImage()
	spec := &runtimeapi.ImageSpec{Image: asked.GetImage(), UserSpecifiedImage: asked.GetUserSpecifiedImage(), RuntimeHandler: asked.GetRuntimeHandler()}
	if img, ok := s.images.Lookup(c.rec.ImageID); ok && len(img.Tags) > 0 {
		spec.Image = img.Tags[0]
	}
	return spec
}

// imageRef returns the image's reference by digest if it came from a registry, else its ID.
func (s *Server) imageRef(c *container) string {
	if img, ok := s.images.Lookup(c.rec.ImageID); ok && len(img.Digests) > 0 {
		return img.Digests[0]
	}
	return c.rec.ImageID
}
