package validation

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

const whenImmutable = "field is immutable when `immutable` is set"

// ConfigMap checks a config map.
func ConfigMap(c *corev1.ConfigMap) field.ErrorList {
	p := &problems{}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(c.Data)) {
		at := field.NewPath("data").Key(key)
		matches(p, at, key, utilvalidation.IsConfigMapKey(key))
		if _, twice := c.BinaryData[key]; twice {
			p.invalid(at, key, "duplicate of key present in binaryData")
		}
		size += len(c.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(c.BinaryData)) {
		matches(p, field.NewPath("binaryData").Key(key), key, utilvalidation.IsConfigMapKey(key))
		size += len(c.BinaryData[key])
	}
	if size > corev1.MaxSecretSize {
		p.add(field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return p.list
}

// part is a field of an object, with its new and its old value.
type part struct {
	name     string
	now, old any
}

// frozen reports changes of an object that said it was immutable, also if it no longer says so.
func (p *problems) frozen(now, old *bool, parts ...part) {
	if !ptr.Deref(old, false) {
		return
	}
	if !ptr.Deref(now, false) {
		p.forbidden(field.NewPath("immutable"), whenImmutable)
	}
	for _, f := range parts {
		if !apiequality.Semantic.DeepEqual(f.now, f.old) {
			p.forbidden(field.NewPath(f.name), whenImmutable)
		}
	}
}

// ConfigMapUpdate checks a config map that replaces old.
func ConfigMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
	p := &problems{}
	p.frozen(c.Immutable, old.Immutable, part{"data", c.Data, old.Data}, part{"binaryData", c.BinaryData, old.BinaryData})
	return append(p.list, ConfigMap(c)...)
}

// Secret checks a secret, which must contain what its type promises.
func Secret(s *corev1.Secret) field.ErrorList {
	p := &problems{}
	at := field.NewPath("data")
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		matches(p, at.Key(key), key, utilvalidation.IsConfigMapKey(key))
		size += len(s.Data[key])
	}
	if size > corev1.MaxSecretSize {
		p.add(field.TooLong(at, "", corev1.MaxSecretSize))
	}
	need := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				p.required(at.Key(key), "")
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		p.present(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), s.Annotations[corev1.ServiceAccountNameKey])
	case corev1.SecretTypeDockercfg:
		p.jsonKey(at, s, corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		p.jsonKey(at, s, corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			p.required(at.Key(corev1.SSHAuthPrivateKey), "")
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return p.list
}

func (p *problems) jsonKey(at path, s *corev1.Secret, key string) {
	data, ok := s.Data[key]
	if !ok {
		p.required(at.Key(key), "")
		return
	}
	if err := json.Unmarshal(data, &map[string]any{}); err != nil {
		p.invalid(at.Key(key), "<secret contents redacted>", "%s", err.Error())
	}
}

// SecretUpdate checks a secret that replaces old.
func SecretUpdate(s, old *corev1.Secret) field.ErrorList {
	p := &problems{}
	immutable(p, field.NewPath("type"), s.Type, old.Type)
	p.frozen(s.Immutable, old.Immutable, part{"data", s.Data, old.Data})
	return append(p.list, Secret(s)...)
}

// Node checks a node.
func Node(n *corev1.Node) field.ErrorList {
	p := &problems{}
	p.node(n)
	return p.list
}

func (p *problems) node(n *corev1.Node) {
	p.taints(field.NewPath("metadata", "taints"), n.Spec.Taints)
	p.podCIDRs(field.NewPath("spec", "podCIDRs"), n.Spec.PodCIDRs)
	p.quantities(field.NewPath("status", "capacity"), n.Status.Capacity)
	p.quantities(field.NewPath("status", "allocatable"), n.Status.Allocatable)
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			p.add(field.Duplicate(field.NewPath("status", "addresses").Index(i), a))
		}
		seen[a] = true
	}
	at, features := field.NewPath("status", "declaredFeatures"), n.Status.DeclaredFeatures
	for i, f := range features {
		switch {
		case len(f) > utilvalidation.DNS1123SubdomainMaxLength:
			p.invalid(at.Index(i), f, "invalid feature name %q: must be no more than %d characters", f, utilvalidation.DNS1123SubdomainMaxLength)
		case !declaredFeature.MatchString(f):
			p.invalid(at.Index(i), f, "invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' "+
				"(e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", f)
		}
		if i > 0 && f == features[i-1] {
			p.add(field.Duplicate(at.Index(i), f))
		} else if i > 0 && f < features[i-1] {
			p.invalid(at.Index(i), f, "list must be sorted alphabetically")
		}
	}
}

// declaredFeature is the name of a feature that a node declares (KEP-5328).
var declaredFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

func (p *problems) quantities(at path, list corev1.ResourceList) {
	for _, r := range slices.Sorted(maps.Keys(list)) {
		p.quantity(at.Child(string(r)), r, list[r])
	}
}

// podCIDRs checks that there is at most one CIDR of each family.
func (p *problems) podCIDRs(at path, cidrs []string) {
	for i, cidr := range cidrs {
		p.addAll(utilvalidation.IsValidCIDR(at.Index(i), cidr))
	}
	if len(cidrs) < 2 {
		return
	}
	if dual, err := utilnet.IsDualStackCIDRStrings(cidrs); err != nil || !dual || len(cidrs) > 2 {
		p.invalid(at, cidrs, "may specify no more than one CIDR for each IP family")
	}
}

func (p *problems) taints(at path, taints []corev1.Taint) {
	type key struct {
		effect corev1.TaintEffect
		key    string
	}
	seen := map[key]bool{}
	for i, t := range taints {
		at := at.Index(i)
		p.addAll(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
		if msgs := utilvalidation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			p.invalid(at.Child("value"), t.Value, "%s", strings.Join(msgs, ";"))
		}
		oneOfRequired(p, at.Child("effect"), t.Effect, taintEffects...)
		if k := (key{t.Effect, t.Key}); seen[k] {
			err := field.Duplicate(at, t)
			err.Detail = "taints must be unique by key and effect pair"
			p.add(err)
		} else {
			seen[k] = true
		}
	}
}

// NodeUpdate checks a node that replaces old.
func NodeUpdate(n, old *corev1.Node) field.ErrorList {
	p := &problems{}
	p.node(n)
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		p.forbidden(field.NewPath("spec", "podCIDRs"), `node updates may not change podCIDR except from "" to valid`)
	}
	if was := old.Spec.ProviderID; was != "" && was != n.Spec.ProviderID {
		what := "modified"
		if n.Spec.ProviderID == "" {
			what = "cleared"
		}
		p.invalid(field.NewPath("spec", "providerID"), nil, "field cannot be %s once set", what)
	}
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		p.forbidden(field.NewPath("spec", "externalID"), "may not be updated")
	}
	return p.list
}

// Namespace checks a namespace.
func Namespace(n *corev1.Namespace) field.ErrorList {
	return namespaceFinalizers(n, func(int) path { return field.NewPath("spec", "finalizers") })
}

// NamespaceFinalize checks what the /finalize endpoint is given, of which upstream says more exactly what is wrong.
func NamespaceFinalize(n *corev1.Namespace) field.ErrorList {
	return namespaceFinalizers(n, func(i int) path { return field.NewPath("spec", "finalizers").Index(i) })
}

func namespaceFinalizers(n *corev1.Namespace, at func(int) path) field.ErrorList {
	p := &problems{}
	for i, f := range n.Spec.Finalizers {
		p.qualified(at(i), string(f))
		p.finalizer(at(i), string(f))
	}
	return p.list
}

// Finalizers checks what is more to be said of the finalizers of a new object of Kubernetes' own kinds: who has no domain
// must be known.
func Finalizers(names []string) field.ErrorList {
	p := &problems{}
	for i, name := range names {
		p.finalizer(field.NewPath("metadata", "finalizers").Index(i), name)
	}
	return p.list
}

func (p *problems) finalizer(at path, name string) {
	known := []string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	if !strings.Contains(name, "/") && !slices.Contains(known, name) {
		p.invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified")
	}
}

// NamespaceStatus checks a namespace's status.
func NamespaceStatus(n, _ *corev1.Namespace) field.ErrorList {
	p := &problems{}
	at := field.NewPath("status", "Phase")
	switch {
	case n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceActive:
		p.invalid(at, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")
	case !n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceTerminating:
		p.invalid(at, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")
	}
	return p.list
}

// Endpoints checks endpoints.
func Endpoints(e *corev1.Endpoints) field.ErrorList {
	p := &problems{}
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			p.required(at, "must specify `addresses` or `notReadyAddresses`")
		}
		for name, list := range map[string][]corev1.EndpointAddress{"addresses": s.Addresses, "notReadyAddresses": s.NotReadyAddresses} {
			for j, a := range list {
				at := at.Child(name).Index(j)
				p.ip(at.Child("ip"), a.IP)
				p.endpointIP(at.Child("ip"), a.IP)
				if a.Hostname != "" {
					p.label(at.Child("hostname"), a.Hostname)
				}
				if a.NodeName != nil {
					p.subdomain(at.Child("nodeName"), *a.NodeName)
				}
			}
		}
		for j, port := range s.Ports {
			at := at.Child("ports").Index(j)
			if port.Name != "" || len(s.Ports) > 1 {
				if p.present(at.Child("name"), port.Name) {
					p.label(at.Child("name"), port.Name)
				}
			}
			p.portNumber(at.Child("port"), port.Port)
			oneOfRequired(p, at.Child("protocol"), port.Protocol, protocols...)
			if port.AppProtocol != nil {
				p.qualified(at.Child("appProtocol"), *port.AppProtocol)
			}
		}
	}
	return p.list
}
