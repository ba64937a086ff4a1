package container

import (
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/confine"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/oci"
)

// Request asks for a container in a sandbox.
type Request struct {
	Sandbox *sandbox.Sandbox
	Config  *runtimeapi.ContainerConfig
	Runtime *oci.Runtime
	Target  *Container // whose PID namespace it shares, if it is a debug container
}

// Plan decides everything that can be decided without an effect.
func (e *Env) Plan(req Request) (*Container, error) {
	b, cfg := req.Sandbox, req.Config
	ref := cfg.GetImage().GetImage()
	img, ok := e.Images.Lookup(ref)
	if !ok {
		return nil, crierror.NotFound("image %q is not present; pull it first", ref)
	}
	cdi, err := confine.CDIDevices(cfg)
	if err != nil {
		return nil, err
	}
	if err := confine.CheckSELinux(cfg.GetLinux().GetSecurityContext(), confine.HasSELinux()); err != nil {
		return nil, err
	}
	if err := checkContainerUserns(b, cfg); err != nil {
		return nil, err
	}
	stop, err := oci.StopSignal(cfg, img.Config)
	if err != nil {
		return nil, crierror.Invalid("%w", err)
	}
	target, err := pidNamespace(req.Target)
	if err != nil {
		return nil, err
	}
	id := disk.NewID()
	rec := Record{
		ID: id, Boot: e.Boot, SandboxID: b.ID, ImageID: img.ID, Image: img.Config, CreatedAt: time.Now().UnixNano(),
		Cgroup: filepath.Join(b.CgroupParent(), id), StopSignal: stop,
		Volumes: e.volumeImages(cfg), Hooked: len(cdi) > 0,
	}
	rec.Config.M = proto.CloneOf(cfg)
	if cfg.GetLogPath() != "" && b.Config.GetLogDirectory() != "" {
		rec.Log = filepath.Join(b.Config.GetLogDirectory(), filepath.Clean("/"+cfg.GetLogPath()))
	}
	c := e.New(rec, req.Runtime)
	c.target = target
	return c, nil
}

// pidNamespace returns the path of the PID namespace of the container that a debug container targets,
// or "" if it targets none.
func pidNamespace(target *Container) (string, error) {
	if target == nil {
		return "", nil
	}
	if !target.Running() {
		return "", crierror.Precondition("target container %s is not running", target.ID)
	}
	return fmt.Sprintf("/proc/%d/ns/pid", target.current().PID), nil
}

// volumeImages returns the IDs of the images that the container mounts, by index of the mount; ""
// stands for a mount of something else.
func (e *Env) volumeImages(cfg *runtimeapi.ContainerConfig) (ids []string) {
	for i, m := range cfg.GetMounts() {
		if img, ok := e.Images.Lookup(m.GetImage().GetImage()); ok && m.GetImage() != nil {
			for len(ids) < i {
				ids = append(ids, "")
			}
			ids = append(ids, img.ID)
		}
	}
	return ids
}

// checkContainerUserns requires a container to ask for its sandbox's user namespace, or for none
// in particular.
func checkContainerUserns(b *sandbox.Sandbox, cfg *runtimeapi.ContainerConfig) error {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetUsernsOptions() == nil {
		return nil
	}
	if err := sandbox.CheckUserns(o); err != nil {
		return err
	}
	if !proto.Equal(sandbox.OwnUserns(o), b.UsernsOptions()) { // two nils are equal
		return crierror.Invalid("the user namespace of the container differs from that of its sandbox")
	}
	return nil
}
