package podops

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// addLogLink links the log into the directory that log collectors read, and removes the links of
// instances that somebody else has removed from the runtime. A failure is only logged.
func (o *Ops) addLogLink(ctx context.Context, in *podplan.Input, op podplan.Op) {
	if o.ContainerLogs == "" {
		return
	}
	target := filepath.Join(criconfig.LogDir(o.PodLogs, in.Pod), criconfig.LogPath(op.Name, op.Attempt))
	err := os.Symlink(target, criconfig.LogSymlink(o.ContainerLogs, in.Pod, op.Name, op.ID))
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if op.Attempt > 0 {
		err = errors.Join(err, o.sweepLogLinks(in.Pod, append(slices.Clone(in.Containers), podplan.Container{Name: op.Name, ID: op.ID})))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot update the container's log links", "container", op.Name)
	}
}

func (o *Ops) removeLogLink(pod *v1.Pod, container, id string) {
	if o.ContainerLogs != "" {
		_ = os.Remove(criconfig.LogSymlink(o.ContainerLogs, pod, container, id))
	}
}

// sweepLogLinks removes the links to a pod's logs except those of the given containers.
func (o *Ops) sweepLogLinks(pod *v1.Pod, known []podplan.Container) error {
	if o.ContainerLogs == "" {
		return nil
	}
	keep := map[string]bool{}
	for i := range known {
		keep[criconfig.LogSymlink(o.ContainerLogs, pod, known[i].Name, known[i].ID)] = true
	}
	links, err := os.ReadDir(o.ContainerLogs)
	if err != nil {
		return err
	}
	var errs []error
	logs := criconfig.LogDir(o.PodLogs, pod) + "/"
	for _, l := range links {
		if !strings.HasPrefix(l.Name(), criconfig.LogSymlinkPrefix(pod)) {
			continue // reading every link is work for a node whose pods come and go by the hundred
		}
		path := filepath.Join(o.ContainerLogs, l.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, logs) && !keep[path] {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
