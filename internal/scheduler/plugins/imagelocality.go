package plugins

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// An image below the first size is not worth considering; above the second one, times the number of
// containers, a node cannot have more of an advantage. They are upstream's.
const (
	smallImage = 23 << 20
	largeImage = 1000 << 20
)

// ImageLocality prefers nodes that have the pod's images already.
type ImageLocality struct{ nodes fwk.NodeInfoLister }

func newImageLocality(_ context.Context, _ *none, h fwk.Handle) (fwk.Plugin, error) {
	return ImageLocality{nodes: h.SnapshotSharedLister().NodeInfos()}, nil
}

// Name returns upstream's name.
func (ImageLocality) Name() string { return "ImageLocality" }

// Score sums up the sizes of the images that are there, each weighed by the share of nodes that have
// it: an image that one node alone has must not draw every pod there.
func (il ImageLocality) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	there := n.GetImageStates()
	if len(there) == 0 {
		return 0, nil
	}
	nodes, err := il.nodes.List()
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	var sum int64
	count := func(image string) {
		if state, ok := there[withTag(image)]; ok {
			spread := float64(state.NumNodes) / float64(len(nodes))
			sum += int64(float64(state.Size) * spread)
		}
	}
	for i := range pod.Spec.InitContainers {
		count(pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Spec.Containers {
		count(pod.Spec.Containers[i].Image)
	}
	images := len(pod.Spec.InitContainers) + len(pod.Spec.Containers)
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			count(v.Image.Reference)
			images++
		}
	}
	most := int64(largeImage) * int64(images)
	sum = min(max(sum, smallImage), most)
	return fwk.MaxScore * (sum - smallImage) / (most - smallImage), nil
}

// withTag returns the image's name as nodes report it.
func withTag(image string) string {
	if strings.LastIndexByte(image, ':') <= strings.LastIndexByte(image, '/') {
		return image + ":latest"
	}
	return image
}

// ScoreExtensions returns nil: the score is on the right scale already.
func (ImageLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }
