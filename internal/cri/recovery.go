package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/oci"
)

// loadSandboxes reads all sandboxes. One whose namespaces are gone (the machine was rebooted) is
// stopped. One that was half made is removed later, by recover, when there is a network to remove
// it from.
func (s *Server) loadSandboxes(log klog.Logger) error {
	ids, err := subdirs(s.cfg.sandboxRoot())
	if err != nil {
		return err
	}
	for _, id := range ids {
		b, err := s.loadSandbox(log, id)
		if err != nil {
			return fmt.Errorf("load sandbox %s: %w", id, err)
		}
		s.sandboxes[id] = b
	}
	return nil
}

func (s *Server) loadSandbox(log klog.Logger, id string) (*sandbox, error) {
	var rec sandboxRecord
	ok, err := loadRecord(log, filepath.Join(s.cfg.sandboxRoot(), id, "sandbox.json"), &rec)
	if err != nil {
		return nil, err
	}
	if !ok || rec.Config.m == nil || rec.ID != id {
		// Wherry was killed while it wrote the record, before it did anything else; or the
		// machine crashed, and nothing runs any more.
		return s.newSandbox(unknownSandbox(id)), nil
	}
	b := s.newSandbox(rec)
	ok, err = loadRecord(log, b.statusPath(), &b.status)
	if err != nil {
		return nil, err
	}
	if !ok {
		b.status = sandboxStatus{Phase: phaseMaking}
		if rec.Boot != s.boot {
			b.status.Phase = phaseStopped
		}
		return b, nil
	}
	if b.status.Phase == phaseReady {
		alive, err := b.alive()
		if err != nil {
			return nil, err
		}
		if !alive {
			b.status.Phase = phaseStopped
		}
	}
	return b, nil
}

// alive reports whether the sandbox's namespaces are still there.
func (b *sandbox) alive() (bool, error) {
	for _, k := range kinds(b.config.GetLinux().GetSecurityContext().GetNamespaceOptions()) {
		if ok, err := netns.Pinned(netns.Path(b.nsDir(), k)); err != nil || !ok {
			return false, err
		}
	}
	if b.usernsOptions() != nil {
		if ok, err := netns.Pinned(netns.Path(b.nsDir(), netns.User)); err != nil || !ok {
			return false, err
		}
	}
	_, err := os.Stat(b.state)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// unknownSandbox stands for a record that cannot be read: everything that a sandbox can have is
// looked for and removed.
func unknownSandbox(id string) sandboxRecord {
	rec := sandboxRecord{ID: id, OwnCgroup: true}
	rec.Config.m = &runtimeapi.PodSandboxConfig{}
	return rec
}

// unknownContainer stands for a container whose record cannot be read. Its cgroup is in the spec,
// if one was written.
func (s *Server) unknownContainer(id string, r *oci.Runtime) *container {
	rec := containerRecord{ID: id, Cgroup: s.cfg.cgroupRoot() + "/lost/" + id}
	rec.Config.m = &runtimeapi.ContainerConfig{}
	c := s.newContainer(rec, r)
	if spec := c.readSpec(); spec != nil && spec.Linux != nil && filepath.Base(spec.Linux.CgroupsPath) == id {
		rec.Cgroup = spec.Linux.CgroupsPath
		c = s.newContainer(rec, r)
	}
	return c
}

// livePods returns the sandboxes that use the network.
func (s *Server) livePods() map[string]cni.Pod {
	live := map[string]cni.Pod{}
	for id, b := range s.sandboxes {
		if b.networks && b.status.Phase == phaseReady {
			live[id] = b.pod()
		}
	}
	return live
}

// knownPods returns all sandboxes: whatever others left in the network is an orphan.
func (s *Server) knownPods() map[string]bool {
	known := map[string]bool{}
	for id := range s.sandboxes {
		known[id] = true
	}
	return known
}

// recover takes over the containers that run, finds out how others exited, and removes what
// interrupted calls left half made. What cannot be removed is left to the next start: a node with
// one broken pod is better than no node.
func (s *Server) recover(ctx context.Context) error {
	log := klog.FromContext(ctx)
	ids, err := subdirs(s.cfg.containerRoot())
	if err != nil {
		return err
	}
	left := map[string]bool{} // left to the next start
	for _, id := range ids {
		if err := s.recoverContainer(ctx, id); err != nil {
			log.Error(err, "A container cannot be recovered; the next start tries again", "container", id)
			left[id] = true
		}
	}
	for id, b := range s.sandboxes {
		if b.status.Phase != phaseMaking {
			continue
		}
		delete(s.sandboxes, id)
		what := fmt.Sprintf("the end of the half-made sandbox %.12s of pod %s/%s", id, b.config.GetMetadata().GetNamespace(), b.config.GetMetadata().GetName())
		if err := s.telling(ctx, what, func() error { return s.clearSandbox(ctx, b) }); err != nil {
			log.Error(err, "A half-made sandbox cannot be cleared; the next start tries again", "sandbox", id)
			left[id] = true
			continue
		}
		log.Info("Cleared a half-made sandbox", "sandbox", id)
	}
	for _, b := range s.sandboxes {
		if b.status.Phase == phaseReady && b.status.PIDNS {
			if err := s.watchInit(b); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(s.sweep(ctx, left), s.sweepRuntimes()); err != nil {
		return err
	}
	log.Info("Recovered", "sandboxes", len(s.sandboxes), "containers", len(s.containers))
	return nil
}

func (s *Server) recoverContainer(ctx context.Context, id string) error {
	rec := containerRecord{}
	ok, err := loadRecord(klog.FromContext(ctx), filepath.Join(s.cfg.containerRoot(), id, "container.json"), &rec)
	if err != nil {
		return err
	}
	var handler string
	b := s.sandboxes[rec.SandboxID]
	if b != nil {
		handler = b.rec.Handler
	}
	r, err := s.handlerOf(ctx, handler)
	if err != nil {
		return err
	}
	whole := ok && rec.ID == id && rec.Config.m != nil
	if !whole {
		klog.FromContext(ctx).Info("Clearing a container whose record cannot be read", "container", id)
		c := s.unknownContainer(id, r)
		return s.telling(ctx, waitsFor(c), func() error { return s.clearContainer(ctx, c) })
	}
	c := s.newContainer(rec, r)
	if whole, err = c.loadStatus(klog.FromContext(ctx), s.boot); err != nil {
		return err
	}
	if !whole || b == nil || b.status.Phase == phaseMaking {
		klog.FromContext(ctx).Info("Clearing a half-made container", "container", id)
		return s.telling(ctx, waitsFor(c), func() error { return s.clearContainer(ctx, c) })
	}
	return s.resume(ctx, c)
}

// patience is how long a step of the start may take before it is reported.
const patience = time.Second

// telling runs a step of the start and, if it takes long, reports what it waits for.
func (s *Server) telling(ctx context.Context, what string, step func() error) error {
	t := time.AfterFunc(patience, func() {
		klog.FromContext(ctx).Info("The start waits", "for", what)
		if s.cfg.Progress != nil {
			s.cfg.Progress("waiting for " + what)
		}
	})
	defer t.Stop()
	return step()
}

// waitsFor describes what the removal of a half-made container may have to wait for.
func waitsFor(c *container) string {
	pod := ""
	if labels := c.config().GetLabels(); labels["io.kubernetes.pod.name"] != "" {
		pod = fmt.Sprintf(" of pod %s/%s", labels["io.kubernetes.pod.namespace"], labels["io.kubernetes.pod.name"])
	}
	return fmt.Sprintf("the end of conmon and the processes of container %.12s%s, which was being made when wherry last ended", c.id, pod)
}

// resume takes back a container that is not half made.
func (s *Server) resume(ctx context.Context, c *container) error {
	for _, id := range append([]string{c.rec.ImageID}, c.rec.Volumes...) {
		if id == "" {
			continue
		}
		if err := s.images.Hold(id, c.id); err != nil {
			klog.FromContext(ctx).Error(err, "The image of a container is gone", "container", c.id)
		}
	}
	s.containers[c.id] = c
	if c.status.EndedAt != 0 {
		close(c.exited)
		if err := s.releaseContainer(ctx, c); err != nil {
			klog.FromContext(ctx).Error(err, "Cleaning up after a container; its removal tries again", "container", c.id)
		}
		close(c.cleaned)
		return nil
	}
	if c.status.Starting && !c.runtime.Waiting(c.id) {
		// Wherry was killed after the start and before it recorded it.
		if err := c.update(func(st *containerStatus) { st.Starting, st.StartedAt = false, c.rec.CreatedAt }); err != nil {
			return err
		}
	}
	monitor, err := openWatch(c)
	if err != nil {
		return err
	}
	s.watch(ctx, c, monitor)
	return nil
}

// sweep removes state folders that belong to nothing. A removal deletes the record last, but a
// machine that crashed can have lost a record while the state survived.
func (s *Server) sweep(ctx context.Context, left map[string]bool) error {
	log := klog.FromContext(ctx)
	ids, err := subdirs(s.cfg.sandboxState())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, known := s.sandboxes[id]; known || left[id] {
			continue
		}
		if err := s.clearSandbox(ctx, s.newSandbox(unknownSandbox(id))); err != nil {
			log.Error(err, "A sandbox without a record cannot be cleared; the next start tries again", "sandbox", id)
		}
	}
	ids, err = subdirs(s.cfg.containerState())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, known := s.containers[id]; known || left[id] {
			continue
		}
		r, err := s.handler("")
		if err != nil {
			return err
		}
		if err := s.clearContainer(ctx, s.unknownContainer(id, r)); err != nil {
			log.Error(err, "A container without a record cannot be cleared; the next start tries again", "container", id)
		}
	}
	return nil
}

// copies matches the copies of themselves that crun and runc make before they enter a container,
// so that nobody can change the program, and that they remove at once.
var copies = regexp.MustCompile(`^(crun|runc)\.[A-Za-z0-9]{6}$`)

// sweepRuntimes removes the copies left by runtimes that were killed: no start of ours uses them
// now.
func (s *Server) sweepRuntimes() error {
	dir := s.cfg.runtimeState("")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type().IsRegular() && copies.MatchString(e.Name()) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
