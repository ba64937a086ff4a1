package validation

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var taintEffects = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}

// Tolerations checks tolerations that are no pod's yet.
func Tolerations(list []corev1.Toleration, at *field.Path) field.ErrorList {
	var p problems
	p.tolerations(at, list)
	return p.list
}

func (p *problems) tolerations(at path, list []corev1.Toleration) {
	for i := range list {
		p.toleration(at.Index(i), &list[i])
	}
}

func (p *problems) toleration(at path, t *corev1.Toleration) {
	if t.Key != "" {
		p.addAll(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	} else if t.Operator != corev1.TolerationOpExists {
		p.invalid(at.Child("operator"), t.Operator, `operator must be Exists when `+"`key`"+` is empty, which means "match all values and all keys"`)
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		p.invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if msgs := utilvalidation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			p.invalid(at.Child("operator"), t.Value, "%s", strings.Join(msgs, ";"))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			p.invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		matches(p, at.Child("value"), t.Value, content.IsDecimalInteger(t.Value))
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			p.invalid(at.Child("value"), t.Value, "%s", err.Error())
		}
	default:
		p.add(notSupported(at.Child("operator"), t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	if t.Effect != "" {
		oneOf(p, at.Child("effect"), t.Effect, taintEffects...)
	}
}

func (p *problems) affinity(at path, a *corev1.Affinity) {
	if a == nil {
		return
	}
	const required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
	if n := a.NodeAffinity; n != nil {
		at := at.Child("nodeAffinity")
		if s := n.RequiredDuringSchedulingIgnoredDuringExecution; s != nil {
			p.nodeSelector(at.Child(required), s)
		}
		for i, t := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			at := at.Child(preferred).Index(i)
			p.weight(at, t.Weight)
			p.nodeSelectorTerm(at.Child("preference"), &t.Preference, false)
		}
	}
	terms := func(at path, must []corev1.PodAffinityTerm, may []corev1.WeightedPodAffinityTerm) {
		for i := range must {
			p.podAffinityTerm(at.Child(required).Index(i), &must[i])
		}
		for i := range may {
			at := at.Child(preferred).Index(i)
			p.weight(at, may[i].Weight)
			p.podAffinityTerm(at.Child("podAffinityTerm"), &may[i].PodAffinityTerm)
		}
	}
	if f := a.PodAffinity; f != nil {
		terms(at.Child("podAffinity"), f.RequiredDuringSchedulingIgnoredDuringExecution, f.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if f := a.PodAntiAffinity; f != nil {
		terms(at.Child("podAntiAffinity"), f.RequiredDuringSchedulingIgnoredDuringExecution, f.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (p *problems) weight(at path, w int32) {
	if w <= 0 || w > 100 {
		p.invalid(at.Child("weight"), w, "must be in the range 1-100")
	}
}

func (p *problems) nodeSelector(at path, s *corev1.NodeSelector) {
	at = at.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		p.required(at, "must have at least one node selector term")
	}
	for i := range s.NodeSelectorTerms {
		p.nodeSelectorTerm(at.Index(i), &s.NodeSelectorTerms[i], true)
	}
}

// nodeSelectorTerm checks a term. Preferences may name impossible label values.
func (p *problems) nodeSelectorTerm(at path, t *corev1.NodeSelectorTerm, checkValues bool) {
	for i := range t.MatchExpressions {
		p.nodeRequirement(at.Child("matchExpressions").Index(i), &t.MatchExpressions[i], checkValues)
	}
	for i := range t.MatchFields {
		p.nodeField(at.Child("matchFields").Index(i), &t.MatchFields[i])
	}
}

func (p *problems) nodeRequirement(at path, r *corev1.NodeSelectorRequirement, checkValues bool) {
	values := at.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			p.required(values, "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			p.forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			p.required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		p.invalid(at.Child("operator"), r.Operator, "not a valid selector operator")
	}
	p.addAll(metavalidation.ValidateLabelName(r.Key, at.Child("key")))
	if checkValues {
		for i, v := range r.Values {
			matches(p, values.Index(i), v, utilvalidation.IsValidLabelValue(v))
		}
	}
}

// nodeField checks a requirement on a field of the node, which can only be its name.
func (p *problems) nodeField(at path, r *corev1.NodeSelectorRequirement) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			p.required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		p.invalid(at.Child("operator"), r.Operator, "not a valid selector operator")
	}
	if r.Key != metav1.ObjectNameField {
		p.invalid(at.Child("key"), r.Key, "not a valid field selector key")
		return
	}
	for i, v := range r.Values {
		p.subdomain(at.Child("values").Index(i), v)
	}
}

func (p *problems) podAffinityTerm(at path, t *corev1.PodAffinityTerm) {
	opts := metavalidation.LabelSelectorValidationOptions{}
	p.addAll(metavalidation.ValidateLabelSelector(t.LabelSelector, opts, at.Child("labelSelector")))
	p.addAll(metavalidation.ValidateLabelSelector(t.NamespaceSelector, opts, at.Child("namespaceSelector")))
	for _, name := range t.Namespaces {
		matches(p, at.Child("namespace"), name, apivalidation.ValidateNamespaceName(name, false))
	}
	p.labelKeys(at, t.MatchLabelKeys, t.MismatchLabelKeys, t.LabelSelector)
	if t.TopologyKey == "" {
		p.required(at.Child("topologyKey"), "can not be empty")
	}
	p.addAll(metavalidation.ValidateLabelName(t.TopologyKey, at.Child("topologyKey")))
}

// labelKeys checks keys whose values are taken from the pod's own labels. They must not be selected
// by other means too.
func (p *problems) labelKeys(at path, match, mismatch []string, selector *metav1.LabelSelector) {
	for _, l := range []struct {
		name string
		keys []string
	}{{"matchLabelKeys", match}, {"mismatchLabelKeys", mismatch}} {
		if len(l.keys) > 0 && selector == nil {
			p.forbidden(at.Child(l.name), "must not be specified when labelSelector is not set")
			continue
		}
		for i, key := range l.keys {
			p.addAll(metavalidation.ValidateLabelName(key, at.Child(l.name).Index(i)))
		}
	}
	index := map[string]int{}
	for i, key := range match {
		index[key] = i
	}
	if selector != nil {
		selected := map[string]bool{}
		for key := range selector.MatchLabels {
			selected[key] = true
		}
		// The registry adds one expression for each key itself; a second one is the user's.
		for _, e := range selector.MatchExpressions {
			if i, ok := index[e.Key]; ok && selected[e.Key] {
				p.invalid(at.Index(i), e.Key, "exists in both matchLabelKeys and labelSelector")
			}
			selected[e.Key] = true
		}
	}
	for _, key := range mismatch {
		if i, ok := index[key]; ok {
			p.invalid(at.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

func (p *problems) topologySpread(at path, list []corev1.TopologySpreadConstraint) {
	seen := map[string]bool{}
	for i := range list {
		t, at := &list[i], at.Index(i)
		p.positive(at.Child("maxSkew"), int64(t.MaxSkew))
		if t.TopologyKey == "" {
			p.required(at.Child("topologyKey"), "can not be empty")
		}
		oneOf(p, at.Child("whenUnsatisfiable"), t.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		key := fmt.Sprintf("{%v, %v}", t.TopologyKey, t.WhenUnsatisfiable)
		if seen[key] {
			p.add(field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), key))
		}
		seen[key] = true
		if t.MinDomains != nil {
			p.positive(at.Child("minDomains"), int64(*t.MinDomains))
			if t.WhenUnsatisfiable != corev1.DoNotSchedule {
				p.invalid(at.Child("minDomains"), *t.MinDomains, "can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, t.WhenUnsatisfiable)
			}
		}
		p.inclusion(at.Child("nodeAffinityPolicy"), t.NodeAffinityPolicy)
		p.inclusion(at.Child("nodeTaintsPolicy"), t.NodeTaintsPolicy)
		p.labelKeys(at, t.MatchLabelKeys, nil, t.LabelSelector)
		p.addAll(metavalidation.ValidateLabelSelector(t.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("labelSelector")))
	}
}

func (p *problems) inclusion(at path, policy *corev1.NodeInclusionPolicy) {
	if policy != nil {
		oneOf(p, at, *policy, corev1.NodeInclusionPolicyIgnore, corev1.NodeInclusionPolicyHonor)
	}
}
