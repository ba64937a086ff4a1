package plugins

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// nodesWithImages is a cluster of so many nodes.
type nodesWithImages struct {
	fwk.NodeInfoLister
	n int
}

func (l nodesWithImages) List() ([]fwk.NodeInfo, error) { return make([]fwk.NodeInfo, l.n), nil }

type nodeWithImages struct {
	fwk.NodeInfo
	images map[string]*fwk.ImageStateSummary
}

func (n nodeWithImages) GetImageStates() map[string]*fwk.ImageStateSummary { return n.images }

// TestImageLocality: the score is the share of images that are there, weighed by how many nodes have them, between two
// limits. The upper one is for each image: those of volumes count, too, as with upstream since 1.37.
func TestImageLocality(t *testing.T) {
	const gib = 1 << 30
	node := nodeWithImages{images: map[string]*fwk.ImageStateSummary{
		"web:1": {Size: gib, NumNodes: 4}, "data:latest": {Size: gib, NumNodes: 2}, "small:1": {Size: 1 << 20, NumNodes: 4},
	}}
	containers := func(images ...string) v1.PodSpec {
		var s v1.PodSpec
		for _, image := range images {
			s.Containers = append(s.Containers, v1.Container{Image: image})
		}
		return s
	}
	withVolume := func(s v1.PodSpec, image string) v1.PodSpec {
		s.Volumes = append(s.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: image}}})
		return s
	}
	for name, tc := range map[string]struct {
		spec v1.PodSpec
		want int64
	}{
		"everywhere":         {containers("web:1"), 100},
		"on half of them":    {containers("data"), 50},
		"nowhere":            {containers("other:1"), 0},
		"too small":          {containers("small:1"), 0},
		"one of two":         {containers("web:1", "other:1"), 50},
		"a volume":           {withVolume(containers("other:1"), "web:1"), 50},
		"a volume elsewhere": {withVolume(containers("web:1"), "other:1"), 50},
	} {
		t.Run(name, func(t *testing.T) {
			got, st := ImageLocality{nodes: nodesWithImages{n: 4}}.Score(t.Context(), nil, &v1.Pod{Spec: tc.spec}, node)
			if !st.IsSuccess() || got != tc.want {
				t.Errorf("%d (%v), want %d", got, st, tc.want)
			}
		})
	}
}
