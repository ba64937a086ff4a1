package volume

import (
	"bytes"
	"errors"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// projections is the kind of volumes with several sources, tokens and certificates among them.
func (m *Mounter) projections() kind {
	return &rendered{
		placed: "kubernetes.io~projected", m: m,
		mine:   func(src *v1.VolumeSource) bool { return src.Projected != nil },
		gather: (*content).projected,
	}
}

func (c *content) projected(s *spec) error {
	p := s.own.Projected
	var errs []error
	for i := range p.Sources {
		src := &p.Sources[i]
		switch {
		case src.ConfigMap != nil:
			errs = append(errs, c.configMap(src.ConfigMap.Name, src.ConfigMap.Items, p.DefaultMode, src.ConfigMap.Optional))
		case src.Secret != nil:
			errs = append(errs, c.secret(src.Secret.Name, src.Secret.Items, p.DefaultMode, src.Secret.Optional))
		case src.DownwardAPI != nil:
			errs = append(errs, c.downward(src.DownwardAPI.Items, p.DefaultMode))
		case src.ServiceAccountToken != nil:
			errs = append(errs, c.token(src.ServiceAccountToken, p.DefaultMode))
		case src.ClusterTrustBundle != nil:
			errs = append(errs, c.bundle(src.ClusterTrustBundle, p.DefaultMode))
		case src.PodCertificate != nil:
			errs = append(errs, c.certificate(s.name, i, src.PodCertificate, p.DefaultMode))
		}
	}
	return errors.Join(errs...)
}

// token adds a service account token.
func (c *content) token(src *v1.ServiceAccountTokenProjection, mode *int32) error {
	token, refreshAt, err := c.m.Tokens.Token(c.ctx, c.pod, src)
	if err != nil {
		return err
	}
	c.renewAt(refreshAt)
	return c.private(src.Path, []byte(token), mode)
}

// certificate adds the files of one podCertificate source.
func (c *content) certificate(volume string, source int, src *v1.PodCertificateProjection, mode *int32) error {
	if c.m.Certificates == nil {
		return errors.New("projected podCertificate is not supported by this node")
	}
	key, chain, refreshAt, err := c.m.Certificates.Bundle(c.ctx, c.pod, volume, source, src)
	if err != nil {
		return err
	}
	c.renewAt(refreshAt)
	for path, data := range map[string][]byte{src.CredentialBundlePath: append(bytes.Clone(key), chain...), src.KeyPath: key, src.CertificateChainPath: chain} {
		if path == "" {
			continue
		}
		if err := c.private(path, data, mode); err != nil {
			return err
		}
	}
	return nil
}

// private adds a file that only its owner can read if the pod says who that is.
func (c *content) private(path string, data []byte, mode *int32) error {
	m := defaultMode
	if mode != nil {
		m = *mode
	}
	owner := commonUser(c.pod)
	if owner != nil || fsGroup(c.pod) != nil {
		m = 0o600
	}
	if err := c.add(path, data, m, nil); err != nil {
		return err
	}
	f := c.files[filepath.Clean(path)]
	f.uid = owner
	c.files[filepath.Clean(path)] = f
	return nil
}

// commonUser returns the user that all containers run as, nil if the pod does not say.
func commonUser(pod *v1.Pod) *int64 {
	var user *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		user = sc.RunAsUser
	}
	var common *int64
	for c := range pods.Containers(&pod.Spec) {
		own := user
		if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
			own = sc.RunAsUser
		}
		if own == nil || common != nil && *common != *own {
			return nil
		}
		common = own
	}
	return common
}
