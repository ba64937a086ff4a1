package criconfig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"wherry.dev/internal/api/pods"
)

// Objects looks up what a pod's environment refers to.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
}

// EnvInput is what a container's environment depends on.
type EnvInput struct {
	Pod       *v1.Pod
	Container *v1.Container
	Objects   Objects
	// Services of the pod's namespace and of "default".
	Services []*v1.Service
	PodIPs   []string
	HostIPs  []string
	NodeName string
	// Allocatable of the node is used for limits that are not set.
	Allocatable v1.ResourceList
	// FileKey reads a key of an environment file in a volume.
	FileKey func(sel *v1.FileKeySelector) (value string, found bool, err error)
}

// Env is one variable.
type Env struct{ Name, Value string }

// Environment returns a container's variables: those of services, of envFrom and of env. A later
// one replaces an earlier one of the same name. Invalid names from envFrom are skipped and
// returned.
func Environment(in EnvInput) (env []Env, skipped []string, err error) {
	in.Objects = &seenObjects{Objects: in.Objects}
	b := &envBuilder{EnvInput: in, services: serviceEnv(in)}
	for i := range in.Container.EnvFrom {
		if err := b.from(&in.Container.EnvFrom[i]); err != nil {
			return nil, nil, err
		}
	}
	for i := range in.Container.Env {
		if err := b.one(&in.Container.Env[i]); err != nil {
			return nil, nil, err
		}
	}
	for _, s := range b.services {
		if !b.has(s.Name) {
			b.env = append(b.env, s)
		}
	}
	return b.env, b.skipped, nil
}

// seenObjects looks up each object only once: it may change meanwhile, and an environment must not
// mix its old and its new content.
type seenObjects struct {
	Objects
	configMaps map[string]func() (*v1.ConfigMap, error)
	secrets    map[string]func() (*v1.Secret, error)
}

func (s *seenObjects) ConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	return seen(&s.configMaps, name, func() (*v1.ConfigMap, error) { return s.Objects.ConfigMap(namespace, name) })
}

func (s *seenObjects) Secret(namespace, name string) (*v1.Secret, error) {
	return seen(&s.secrets, name, func() (*v1.Secret, error) { return s.Objects.Secret(namespace, name) })
}

func seen[T any](before *map[string]func() (T, error), name string, look func() (T, error)) (T, error) {
	if *before == nil {
		*before = map[string]func() (T, error){}
	}
	if (*before)[name] == nil {
		(*before)[name] = sync.OnceValues(look)
	}
	return (*before)[name]()
}

type envBuilder struct {
	EnvInput
	env      []Env
	services []Env
	skipped  []string
}

func (b *envBuilder) set(name, value string) {
	i := slices.IndexFunc(b.env, func(e Env) bool { return e.Name == name })
	if i >= 0 {
		b.env[i].Value = value
		return
	}
	b.env = append(b.env, Env{name, value})
}

func (b *envBuilder) has(name string) bool {
	return slices.ContainsFunc(b.env, func(e Env) bool { return e.Name == name })
}

func (b *envBuilder) lookup(name string) (string, bool) {
	for _, list := range [][]Env{b.env, b.services} {
		if i := slices.IndexFunc(list, func(e Env) bool { return e.Name == name }); i >= 0 {
			return list[i].Value, true
		}
	}
	return "", false
}

// from adds all keys of a configMap or secret.
func (b *envBuilder) from(src *v1.EnvFromSource) error {
	values := map[string]string{}
	switch {
	case src.ConfigMapRef != nil:
		cm, err := b.Objects.ConfigMap(b.Pod.Namespace, src.ConfigMapRef.Name)
		if err != nil {
			return optional(src.ConfigMapRef.Optional, err)
		}
		values = cm.Data
	case src.SecretRef != nil:
		s, err := b.Objects.Secret(b.Pod.Namespace, src.SecretRef.Name)
		if err != nil {
			return optional(src.SecretRef.Optional, err)
		}
		for k, v := range s.Data {
			values[k] = string(v)
		}
	}
	keys := make([]string, 0, len(values))
	for k := range values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		name := src.Prefix + k
		if len(validation.IsRelaxedEnvVarName(name)) > 0 {
			b.skipped = append(b.skipped, k)
			continue
		}
		b.set(name, values[k])
	}
	return nil
}

// optional ignores a missing object if the pod says that it is optional.
func optional(opt *bool, err error) error {
	if opt != nil && *opt && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (b *envBuilder) one(e *v1.EnvVar) error {
	if e.ValueFrom == nil {
		b.set(e.Name, Expand(e.Value, b.lookup))
		return nil
	}
	value, found, err := b.valueFrom(e.ValueFrom)
	if err != nil {
		return err
	}
	if found {
		b.set(e.Name, value)
	}
	return nil
}

func (b *envBuilder) valueFrom(src *v1.EnvVarSource) (string, bool, error) {
	switch {
	case src.FieldRef != nil:
		v, err := PodField(src.FieldRef.FieldPath, b.Pod, b.PodIPs, b.HostIPs, b.NodeName)
		return v, true, err
	case src.ResourceFieldRef != nil:
		c := b.Container
		if name := src.ResourceFieldRef.ContainerName; name != "" {
			if c = findContainer(b.Pod, name); c == nil {
				return "", false, fmt.Errorf("container %s not found", name)
			}
		}
		v, err := ResourceField(src.ResourceFieldRef, b.Pod, c, b.Allocatable)
		return v, true, err
	case src.ConfigMapKeyRef != nil:
		return b.configMapKey(src.ConfigMapKeyRef)
	case src.SecretKeyRef != nil:
		return b.secretKey(src.SecretKeyRef)
	case src.FileKeyRef != nil:
		if b.FileKey == nil {
			return "", false, errors.New("environment files are not available")
		}
		return b.FileKey(src.FileKeyRef)
	default:
		return "", false, nil
	}
}

func (b *envBuilder) configMapKey(ref *v1.ConfigMapKeySelector) (string, bool, error) {
	cm, err := b.Objects.ConfigMap(b.Pod.Namespace, ref.Name)
	if err != nil {
		return "", false, optional(ref.Optional, err)
	}
	v, ok := cm.Data[ref.Key]
	if !ok && (ref.Optional == nil || !*ref.Optional) {
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, b.Pod.Namespace, ref.Name)
	}
	return v, ok, nil
}

func (b *envBuilder) secretKey(ref *v1.SecretKeySelector) (string, bool, error) {
	s, err := b.Objects.Secret(b.Pod.Namespace, ref.Name)
	if err != nil {
		return "", false, optional(ref.Optional, err)
	}
	v, ok := s.Data[ref.Key]
	if !ok && (ref.Optional == nil || !*ref.Optional) {
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, b.Pod.Namespace, ref.Name)
	}
	return string(v), ok, nil
}

func findContainer(pod *v1.Pod, name string) *v1.Container {
	for c := range pods.Containers(&pod.Spec) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// PodField resolves a fieldRef.
func PodField(path string, pod *v1.Pod, podIPs, hostIPs []string, nodeName string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", name)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return FormatMap(pod.Labels), nil
	case "metadata.annotations":
		return FormatMap(pod.Annotations), nil
	case "spec.nodeName":
		return nodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	case "status.hostIP":
		return first(hostIPs), nil
	case "status.hostIPs":
		return strings.Join(hostIPs, ","), nil
	default:
		return "", fmt.Errorf("unsupported fieldPath: %v", path)
	}
}

// subscript parses metadata.labels['key'].
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return name, key, ok
}

// FormatMap formats labels or annotations as the downward API shows them.
func FormatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+strconv.Quote(v))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}
