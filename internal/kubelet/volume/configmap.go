package volume

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// configMaps is the kind of volumes that show a configMap.
func (m *Mounter) configMaps() kind {
	return &rendered{
		placed: "kubernetes.io~configmap", m: m, onDisk: true,
		mine: func(src *v1.VolumeSource) bool { return src.ConfigMap != nil },
		gather: func(c *content, s *spec) error {
			src := s.own.ConfigMap
			return c.configMap(src.Name, src.Items, src.DefaultMode, src.Optional)
		},
	}
}

func (c *content) configMap(name string, items []v1.KeyToPath, mode *int32, optional *bool) error {
	cm, err := c.m.Objects(c.ctx).ConfigMap(c.pod.Namespace, name)
	if err != nil {
		return missing(err, optional)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, s := range cm.Data {
		data[k] = []byte(s)
	}
	maps.Copy(data, cm.BinaryData)
	return c.keys(data, items, mode, optional, "references non-existent config key: ")
}
