package volume

import v1 "k8s.io/api/core/v1"

// secrets is the kind of volumes that show a secret.
func (m *Mounter) secrets() kind {
	return &rendered{
		placed: "kubernetes.io~secret", m: m,
		mine: func(src *v1.VolumeSource) bool { return src.Secret != nil },
		gather: func(c *content, s *spec) error {
			src := s.own.Secret
			return c.secret(src.SecretName, src.Items, src.DefaultMode, src.Optional)
		},
	}
}

func (c *content) secret(name string, items []v1.KeyToPath, mode *int32, optional *bool) error {
	s, err := c.m.Objects(c.ctx).Secret(c.pod.Namespace, name)
	if err != nil {
		return missing(err, optional)
	}
	return c.keys(s.Data, items, mode, optional, "references non-existent secret key: ")
}
