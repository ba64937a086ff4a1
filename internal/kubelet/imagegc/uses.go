package imagegc

import (
	"context"
	"fmt"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// names finds images by whatever runtimes and pods call them.
type names map[string]string

func namesOf(images []*runtimeapi.Image) names {
	n := names{}
	for _, i := range images {
		n[i.Id] = i.Id
		for _, list := range [][]string{i.RepoTags, i.RepoDigests} {
			for _, name := range list {
				n[full(name)] = i.Id
			}
		}
	}
	return n
}

// full returns a name with registry and tag, or digest.
func full(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.TagNameOnly(named).String()
}

func (n names) id(name string) (string, bool) {
	if id, ok := n[name]; ok {
		return id, true
	}
	id, ok := n[full(name)]
	return id, ok
}

// needs returns the images that pods need, as they and the runtime name them: those of pods that have
// not ended, whether they are running, restarting, being set up or waiting for an image, and those that
// containers have mounted.
func needs(list []*podworker.Snapshot) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		for i := range s.Input.Containers {
			for _, m := range s.Input.Containers[i].Mounts {
				out[m.Image] = true
			}
		}
		if s.Plan.Life == podplan.PodTerminated || pods.IsTerminal(s.Pod.Status.Phase) && s.At.IsZero() {
			continue
		}
		for _, i := range s.Input.Images {
			out[i.Ref] = true
		}
		inSpec(&s.Pod.Spec, out)
	}
	delete(out, "")
	return out
}

func inSpec(spec *v1.PodSpec, out map[string]bool) {
	for c := range pods.AllContainers(spec) {
		out[c.Image] = true
	}
	for i := range spec.Volumes {
		if v := spec.Volumes[i].Image; v != nil {
			out[v.Reference] = true
		}
	}
}

// used returns which images containers have, dead ones too, and pods need. Without a certain answer
// about each there is none at all.
func (c *Collector) used(ctx context.Context, images []*runtimeapi.Image) (map[string]bool, names, error) {
	containers, err := c.cfg.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("list containers: %w", err)
	}
	known, used := namesOf(images), map[string]bool{}
	for _, o := range containers {
		for _, name := range []string{o.ImageId, o.ImageRef, o.Image.GetImage()} {
			if id, ok := known.id(name); ok {
				used[id] = true
			}
		}
	}
	for name := range needs(c.cfg.Pods.List()) {
		id, ok := known.id(name)
		if !ok { // the runtime may know it by a name of its own, such as a part of the ID
			resp, err := c.cfg.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: name}, false)
			if err != nil {
				return nil, nil, fmt.Errorf("look for image %q: %w", name, err)
			}
			if resp.GetImage() == nil {
				continue
			}
			id = resp.Image.Id
			known[name] = id
		}
		used[id] = true
	}
	return used, known, nil
}
