package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/disk"
)

// loadSandboxes reads all sandboxes. One whose namespaces are gone (the machine was rebooted) is
// stopped. One that was half made is removed later, by recover, when there is a network to remove
// it from.
func (s *Server) loadSandboxes(log klog.Logger) error {
	ids, err := disk.Folders(s.cfg.layout().Sandboxes())
	if err != nil {
		return err
	}
	for _, id := range ids {
		b, err := s.sandboxEnv.Load(log, id)
		if err != nil {
			return fmt.Errorf("load sandbox %s: %w", id, err)
		}
		s.addSandbox(b)
	}
	return nil
}

// livePods returns the sandboxes that use the network.
func (s *Server) livePods() map[string]cni.Pod {
	live := map[string]cni.Pod{}
	for id, b := range s.sandboxes {
		if b.Networks && b.Ready() {
			live[id] = b.Pod()
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
	ids, err := disk.Folders(s.cfg.layout().Containers())
	if err != nil {
		return err
	}
	left := map[string]bool{} // left to the next start
	for _, id := range ids {
		if err := s.recoverContainer(ctx, id); err != nil {
			log.Error(err, "Cannot recover a container; the next start tries again", "container", id)
			left[id] = true
		}
	}
	for id, b := range s.sandboxes {
		if !b.HalfMade() {
			continue
		}
		s.dropSandbox(b)
		what := fmt.Sprintf("the removal of the half-created sandbox %.12s of pod %s/%s", id, b.Config.GetMetadata().GetNamespace(), b.Config.GetMetadata().GetName())
		if err := s.telling(ctx, what, func() error { return b.Clear(ctx) }); err != nil {
			log.Error(err, "Cannot remove a half-created sandbox; the next start tries again", "sandbox", id)
			left[id] = true
			continue
		}
		log.Info("Removed a half-created sandbox", "sandbox", id)
	}
	for _, b := range s.sandboxes {
		if b.Ready() && b.SharesPIDs() {
			if err := s.watchInit(b); err != nil { //nolint:contextcheck // the watch ends with the server
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
	log := klog.FromContext(ctx)
	rec, ok, err := s.containerEnv.ReadRecord(log, id)
	if err != nil {
		return err
	}
	b, handler := s.sandboxes[rec.SandboxID], ""
	if b != nil {
		handler = b.Handler()
	}
	r, err := s.handlers.Former(ctx, handler)
	if err != nil {
		return err
	}
	if !ok {
		log.Info("Removing a container whose record cannot be read", "container", id)
		c := s.containerEnv.Unknown(id, r)
		return s.telling(ctx, waitsFor(c), func() error { return c.Clear(ctx) })
	}
	c, whole, err := s.containerEnv.Load(log, rec, r)
	if err != nil {
		return err
	}
	if !whole || b == nil || b.HalfMade() {
		log.Info("Removing a half-created container", "container", id)
		return s.telling(ctx, waitsFor(c), func() error { return c.Clear(ctx) })
	}
	return s.resume(ctx, c)
}

// patience is how long a step of the start may take before it is reported.
const patience = time.Second

// telling runs a step of the start and, if it takes long, reports what it waits for.
func (s *Server) telling(ctx context.Context, what string, step func() error) error {
	t := time.AfterFunc(patience, func() {
		klog.FromContext(ctx).Info("Startup is waiting", "for", what)
		if s.cfg.Progress != nil {
			s.cfg.Progress("waiting for " + what)
		}
	})
	defer t.Stop()
	return step()
}

// waitsFor describes what the removal of a half-made container may have to wait for.
func waitsFor(c *container.Container) string {
	pod := ""
	if labels := c.Config().GetLabels(); labels["io.kubernetes.pod.name"] != "" {
		pod = fmt.Sprintf(" of pod %s/%s", labels["io.kubernetes.pod.namespace"], labels["io.kubernetes.pod.name"])
	}
	return fmt.Sprintf("conmon and the processes of container %.12s%s to exit, which was being created when wherry last stopped", c.ID, pod)
}

// resume takes back a container that is not half made.
func (s *Server) resume(ctx context.Context, c *container.Container) error {
	s.addContainer(c)
	if err := c.Resume(ctx); err != nil || c.Ended() {
		return err
	}
	monitor, err := c.OpenMonitor()
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
	ids, err := disk.Folders(s.cfg.layout().SandboxState())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, known := s.sandboxes[id]; known || left[id] {
			continue
		}
		if err := s.sandboxEnv.Unknown(id).Clear(ctx); err != nil {
			log.Error(err, "Cannot remove a sandbox without a record; the next start tries again", "sandbox", id)
		}
	}
	ids, err = disk.Folders(s.cfg.layout().ContainerState())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, known := s.containers[id]; known || left[id] {
			continue
		}
		r, err := s.handlers.Get("")
		if err != nil {
			return err
		}
		if err := s.containerEnv.Unknown(id, r).Clear(ctx); err != nil {
			log.Error(err, "Cannot remove a container without a record; the next start tries again", "container", id)
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
	dir := s.cfg.layout().RuntimeState("")
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
