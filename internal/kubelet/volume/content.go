package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/mount"
)

const defaultMode = int32(0o644)

// file is one entry of a volume whose content the kubelet writes.
type file struct {
	data []byte
	mode int32
	// uid owns the file, unless it is nil.
	uid *int64
}

// content collects the files of a volume.
type content struct {
	m     *Mounter
	ctx   context.Context
	pod   *v1.Pod
	files map[string]file
	// refresh is the earliest time at which a token or certificate has to be renewed.
	refresh time.Time
}

// mountContent writes a configMap, secret, downwardAPI or projected volume. All except configMaps
// are kept in memory only.
func (m *Mounter) mountContent(ctx context.Context, pod *v1.Pod, v *v1.Volume, dir string) (time.Time, error) {
	c := &content{m: m, ctx: ctx, pod: pod, files: map[string]file{}}
	if err := c.gather(v); err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return time.Time{}, err
	}
	if v.ConfigMap == nil {
		if err := mount.Tmpfs(dir, 0o777, m.tmpfsSize(pod, new(resource.Quantity))); err != nil {
			return time.Time{}, err
		}
	} else if err := os.MkdirAll(dir, 0o777); err != nil {
		return time.Time{}, err
	}
	if err := ownVolume(dir, 0o777, fsGroup(pod)); err != nil {
		return time.Time{}, err
	}
	return c.refresh, writeAtomic(dir, c.files, fsGroup(pod))
}

func (c *content) gather(v *v1.Volume) error {
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return c.configMap(s.Name, s.Items, s.DefaultMode, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		return c.secret(s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case v.DownwardAPI != nil:
		return c.downward(v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	default:
		return c.projected(v)
	}
}

func (c *content) projected(v *v1.Volume) error {
	p := v.Projected
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
			errs = append(errs, c.certificate(v.Name, i, src.PodCertificate, p.DefaultMode))
		}
	}
	return errors.Join(errs...)
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

func (c *content) secret(name string, items []v1.KeyToPath, mode *int32, optional *bool) error {
	s, err := c.m.Objects(c.ctx).Secret(c.pod.Namespace, name)
	if err != nil {
		return missing(err, optional)
	}
	return c.keys(s.Data, items, mode, optional, "references non-existent secret key: ")
}

func missing(err error, optional *bool) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// keys adds the selected keys of an object, or all of them.
func (c *content) keys(data map[string][]byte, items []v1.KeyToPath, mode *int32, optional *bool, absent string) error {
	m := defaultMode
	if mode != nil {
		m = *mode
	}
	if len(items) == 0 {
		for k, d := range data {
			c.files[k] = file{data: d, mode: m}
		}
		return nil
	}
	for _, item := range items {
		d, ok := data[item.Key]
		if !ok {
			if optional != nil && *optional {
				continue
			}
			return errors.New(absent + item.Key)
		}
		if err := c.add(item.Path, d, m, item.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) add(path string, data []byte, mode int32, own *int32) error {
	if !filepath.IsLocal(path) {
		return fmt.Errorf("path %q must be relative and must not contain '..'", path)
	}
	if own != nil {
		mode = *own
	}
	c.files[filepath.Clean(path)] = file{data: data, mode: mode}
	return nil
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

// token adds a service account token.
func (c *content) token(src *v1.ServiceAccountTokenProjection, mode *int32) error {
	token, refreshAt, err := c.m.Tokens.Token(c.ctx, c.pod, src)
	if err != nil {
		return err
	}
	c.renewAt(refreshAt)
	return c.private(src.Path, []byte(token), mode)
}

// renewAt makes sure that the volume is written again at that time at the latest.
func (c *content) renewAt(at time.Time) {
	if !at.IsZero() && (c.refresh.IsZero() || at.Before(c.refresh)) {
		c.refresh = at
	}
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
