package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
)

// downwardAPIs is the kind of volumes that show what a pod is.
func (m *Mounter) downwardAPIs() kind {
	return &rendered{
		placed: "kubernetes.io~downward-api", m: m,
		mine: func(src *v1.VolumeSource) bool { return src.DownwardAPI != nil },
		gather: func(c *content, s *spec) error {
			return c.downward(s.own.DownwardAPI.Items, s.own.DownwardAPI.DefaultMode)
		},
	}
}

func (c *content) downward(items []v1.DownwardAPIVolumeFile, mode *int32) error {
	m := defaultMode
	if mode != nil {
		m = *mode
	}
	for i := range items {
		value, err := c.downwardValue(&items[i])
		if err != nil {
			return err
		}
		if err := c.add(items[i].Path, []byte(value), m, items[i].Mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) downwardValue(item *v1.DownwardAPIVolumeFile) (string, error) {
	if item.FieldRef != nil {
		return criconfig.PodField(item.FieldRef.FieldPath, c.pod, nil, nil, c.m.NodeName)
	}
	ref := item.ResourceFieldRef
	if ref == nil {
		return "", fmt.Errorf("downwardAPI item %q has neither fieldRef nor resourceFieldRef", item.Path)
	}
	for ctr := range pods.Containers(&c.pod.Spec) {
		if ctr.Name == ref.ContainerName {
			return criconfig.ResourceField(ref, c.pod, ctr, c.m.Allocatable())
		}
	}
	return "", fmt.Errorf("container %s not found", ref.ContainerName)
}
