package warnings

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// virtualPath is a file that a volume makes, and from what, if it has several sources.
type virtualPath struct{ path, source string }

func (p virtualPath) String() string {
	if p.source != "" {
		return fmt.Sprintf("%q (%s)", p.path, p.source)
	}
	return fmt.Sprintf("%q", p.path)
}

// paths warns of files of one volume that are in each other's way.
func (l *list) paths(v *corev1.Volume) {
	overlap := func(of string, all []virtualPath) {
		for i, p := range all {
			for _, other := range all[:i] {
				if p.path != "" && other.path != "" && collide(p.path, other.path) {
					*l = append(*l, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", v.Name, of, p, other))
				}
			}
		}
	}
	switch {
	case v.ConfigMap != nil:
		overlap(fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name), keyPaths(v.ConfigMap.Items, ""))
	case v.Secret != nil:
		overlap(fmt.Sprintf("Secret %q", v.Secret.SecretName), keyPaths(v.Secret.Items, ""))
	case v.DownwardAPI != nil:
		overlap("DownwardAPI", fieldPaths(v.DownwardAPI.Items, ""))
	case v.Projected != nil:
		var all []virtualPath
		for _, s := range v.Projected.Sources {
			if s == (corev1.VolumeProjection{}) {
				*l = append(*l, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
				continue
			}
			all = append(all, sourcePaths(&s)...)
		}
		overlap("Projected", all)
	}
}

func collide(a, b string) bool {
	return strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/")
}

func sourcePaths(s *corev1.VolumeProjection) []virtualPath {
	switch {
	case s.ConfigMap != nil:
		return keyPaths(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil:
		return keyPaths(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil:
		return fieldPaths(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return trimmed(virtualPath{s.ServiceAccountToken.Path, "ServiceAccountToken"})
	case s.ClusterTrustBundle != nil:
		name := s.ClusterTrustBundle.Name
		if name == nil {
			name = s.ClusterTrustBundle.SignerName
		}
		if name == nil {
			return nil // refused by validation
		}
		return trimmed(virtualPath{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)})
	case s.PodCertificate != nil:
		return trimmed(virtualPath{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			virtualPath{s.PodCertificate.KeyPath, "PodCertificate key"},
			virtualPath{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"})
	}
	return nil
}

func keyPaths(items []corev1.KeyToPath, source string) []virtualPath {
	var out []virtualPath
	for _, i := range items {
		out = append(out, trimmed(virtualPath{i.Path, source})...)
	}
	return out
}

func fieldPaths(items []corev1.DownwardAPIVolumeFile, source string) []virtualPath {
	var out []virtualPath
	for _, i := range items {
		out = append(out, trimmed(virtualPath{i.Path, source})...)
	}
	return out
}

func trimmed(paths ...virtualPath) []virtualPath {
	for i := range paths {
		paths[i].path = strings.TrimRight(paths[i].path, "/")
	}
	return paths
}
