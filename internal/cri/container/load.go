package container

import (
	"context"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/oci"
)

// ReadRecord reads the record of a container. ok is false if there is none that can be read.
func (e *Env) ReadRecord(log klog.Logger, id string) (rec Record, ok bool, err error) {
	ok, err = disk.Load(log, filepath.Join(e.Layout.Containers(), id, "container.json"), &rec)
	return rec, ok && rec.ID == id && rec.Config.M != nil, err
}

// Load returns the container of a record, with its status. whole is false if it was half made.
func (e *Env) Load(log klog.Logger, rec Record, r *oci.Runtime) (c *Container, whole bool, err error) {
	c = e.New(rec, r)
	whole, err = c.loadStatus(log, e.Boot)
	return c, whole, err
}

// loadStatus reads the status. whole is false if the container was half made.
func (c *Container) loadStatus(log klog.Logger, boot string) (whole bool, err error) {
	for _, path := range []string{c.finalPath(), c.statusPath()} {
		if ok, err := disk.Load(log, path, &c.status); err != nil || ok {
			return ok, err
		}
	}
	return c.rec.Boot != boot, nil
}

// Unknown stands for a container whose record cannot be read. Its cgroup is in the spec, if one was
// written.
func (e *Env) Unknown(id string, r *oci.Runtime) *Container {
	rec := Record{ID: id, Cgroup: e.Cgroups + "/lost/" + id}
	rec.Config.M = &runtimeapi.ContainerConfig{}
	c := e.New(rec, r)
	if spec := c.readSpec(); spec != nil && spec.Linux != nil && filepath.Base(spec.Linux.CgroupsPath) == id {
		rec.Cgroup = spec.Linux.CgroupsPath
		c = e.New(rec, r)
	}
	return c
}

// Resume takes it back after a restart. Unless it has ended, it is to be watched then.
func (c *Container) Resume(ctx context.Context) error {
	log := klog.FromContext(ctx)
	for _, id := range append([]string{c.rec.ImageID}, c.rec.Volumes...) {
		if id == "" {
			continue
		}
		if err := c.env.Images.Hold(id, c.ID); err != nil {
			log.Error(err, "The image of a container is missing", "container", c.ID)
		}
	}
	if c.status.EndedAt != 0 {
		close(c.exited)
		if err := c.release(ctx); err != nil {
			log.Error(err, "Cannot clean up after a container; its removal tries again", "container", c.ID)
		}
		close(c.cleaned)
		return nil
	}
	if c.status.Starting && !c.runtime.Waiting(c.ID) {
		// Wherry was killed after the start and before it recorded it.
		return c.update(func(st *State) { st.Starting, st.StartedAt = false, c.rec.CreatedAt })
	}
	return nil
}
