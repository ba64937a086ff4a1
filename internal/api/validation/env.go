package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podContext) env(at path, vars []corev1.EnvVar) {
	for i := range vars {
		v, at := &vars[i], at.Index(i)
		if c.present(at.Child("name"), v.Name) {
			matches(c.problems, at.Child("name"), v.Name, utilvalidation.IsRelaxedEnvVarName(v.Name))
		}
		if v.ValueFrom != nil {
			c.valueFrom(at.Child("valueFrom"), v)
		}
	}
}

func (c *podContext) valueFrom(at path, v *corev1.EnvVar) {
	from, sources := v.ValueFrom, 0
	if f := from.FieldRef; f != nil {
		sources++
		c.fieldRef(at.Child("fieldRef"), f, envFields)
	}
	if f := from.ResourceFieldRef; f != nil {
		sources++
		c.resourceFieldRef(at.Child("resourceFieldRef"), f, false)
	}
	if k := from.ConfigMapKeyRef; k != nil {
		sources++
		c.keyRef(at.Child("configMapKeyRef"), k.Name, k.Key)
	}
	if k := from.SecretKeyRef; k != nil {
		sources++
		c.keyRef(at.Child("secretKeyRef"), k.Name, k.Key)
	}
	if k := from.FileKeyRef; k != nil {
		sources++
		c.fileKeyRef(at.Child("fileKeyRef"), k)
	}
	switch {
	case sources == 0:
		c.invalid(at, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case v.Value != "":
		c.invalid(at, "", "may not be specified when `value` is not empty")
	case sources > 1:
		c.invalid(at, "", "may not have more than one field specified at a time")
	}
}

func (c *podContext) keyRef(at path, name, key string) {
	c.subdomain(at.Child("name"), name)
	if c.present(at.Child("key"), key) {
		matches(c.problems, at.Child("key"), key, utilvalidation.IsConfigMapKey(key))
	}
}

func (c *podContext) fileKeyRef(at path, k *corev1.FileKeySelector) {
	if c.present(at.Child("key"), k.Key) {
		matches(c.problems, at.Child("key"), k.Key, utilvalidation.IsRelaxedEnvVarName(k.Key))
	}
	if c.present(at.Child("path"), k.Path) {
		c.noBacksteps(at.Child("path"), k.Path)
	}
	if !c.present(at.Child("volumeName"), k.VolumeName) {
		return
	}
	at = at.Child("volumeName")
	c.label(at, k.VolumeName)
	if v := c.volumes[k.VolumeName]; v == nil {
		c.add(field.NotFound(at, k.VolumeName))
	} else if v.EmptyDir == nil {
		c.invalid(at, k.VolumeName, "referenced volume must be of type emptyDir")
	}
}

// envFields and volumeFields are the fields of a pod that can be passed to its containers.
// metadata.labels['x'] and metadata.annotations['x'] are allowed in addition.
var (
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	volumeFields = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
	// knownFields are all that a fieldPath can name, whether they are allowed in that place or not.
	knownFields = []string{
		"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
		"spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName", "status.phase",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs", "spec.host",
	}
)

func (c *podContext) fieldRef(at path, f *corev1.ObjectFieldSelector, allowed []string) {
	if !c.present(at.Child("apiVersion"), f.APIVersion) || !c.present(at.Child("fieldPath"), f.FieldPath) {
		return
	}
	if f.APIVersion != "v1" {
		c.invalid(at.Child("fieldPath"), f.FieldPath, "error converting fieldPath: unsupported pod version: %s", f.APIVersion)
		return
	}
	base, key, subscript := splitSubscript(f.FieldPath)
	switch {
	case subscript && base == "metadata.annotations":
		c.qualified(at, strings.ToLower(key))
	case subscript && base == "metadata.labels":
		c.qualified(at, key)
	case subscript || !slices.Contains(knownFields, f.FieldPath):
		c.invalid(at.Child("fieldPath"), f.FieldPath, "error converting fieldPath: field label not supported: %s", f.FieldPath)
	case !slices.Contains(allowed, f.FieldPath):
		c.add(field.NotSupported(at.Child("fieldPath"), f.FieldPath, allowed))
	}
}

// splitSubscript splits metadata.labels['x'].
func splitSubscript(s string) (base, key string, ok bool) {
	head, ok := strings.CutSuffix(s, "']")
	if !ok {
		return s, "", false
	}
	base, key, ok = strings.Cut(head, "['")
	if !ok || base == "" {
		return s, "", false
	}
	return base, key, true
}

var (
	resourceFields = []string{
		"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory",
	}
	cpuDivisors  = []string{"1m", "1"}
	byteDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
)

// resourceFieldRef checks a reference to a container's resources. In a volume it must name the
// container.
func (c *podContext) resourceFieldRef(at path, f *corev1.ResourceFieldSelector, inVolume bool) {
	huge := strings.HasPrefix(f.Resource, "limits.hugepages-") || strings.HasPrefix(f.Resource, "requests.hugepages-")
	switch {
	case inVolume && f.ContainerName == "":
		c.required(at.Child("containerName"), "")
	case f.Resource == "":
		c.required(at.Child("resource"), "")
	case !huge && !slices.Contains(resourceFields, f.Resource):
		c.add(field.NotSupported(at.Child("resource"), f.Resource, resourceFields))
	}
	if f.Divisor.Cmp(resource.Quantity{}) == 0 {
		return
	}
	allowed, what, list := byteDivisors, "memory", strings.Join(byteDivisors, ", ")
	switch {
	case strings.HasSuffix(f.Resource, ".cpu"):
		allowed, what, list = cpuDivisors, "cpu", "1m and 1"
	case strings.HasSuffix(f.Resource, ".ephemeral-storage"):
		what = "local ephemeral storage"
	case huge:
		what = "hugepages"
	case !strings.HasSuffix(f.Resource, ".memory"):
		return
	}
	if !slices.Contains(allowed, f.Divisor.String()) {
		c.invalid(at.Child("divisor"), f.Resource, "only divisor's values %s are supported with the %s resource", list, what)
	}
}

func (c *podContext) envFrom(at path, sources []corev1.EnvFromSource) {
	for i, s := range sources {
		item := at.Index(i)
		if s.Prefix != "" {
			matches(c.problems, item.Child("prefix"), s.Prefix, utilvalidation.IsRelaxedEnvVarName(s.Prefix))
		}
		if s.ConfigMapRef != nil && c.present(item.Child("configMapRef", "name"), s.ConfigMapRef.Name) {
			c.subdomain(item.Child("configMapRef", "name"), s.ConfigMapRef.Name)
		}
		if s.SecretRef != nil && c.present(item.Child("secretRef", "name"), s.SecretRef.Name) {
			c.subdomain(item.Child("secretRef", "name"), s.SecretRef.Name)
		}
		switch {
		case s.ConfigMapRef == nil && s.SecretRef == nil:
			c.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			c.invalid(at, "", "may not have more than one field specified at a time")
		}
	}
}
