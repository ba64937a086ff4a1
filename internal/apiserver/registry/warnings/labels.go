// Package warnings has what the API server warns of: what is allowed, but is deprecated or hardly intended. The words
// are upstream's.
package warnings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// list gathers warnings.
type list []string

func (l *list) warn(at *field.Path, format string, args ...any) {
	*l = append(*l, at.String()+": "+fmt.Sprintf(format, args...))
}

// oldNodeLabels maps node labels that are deprecated to what to say about them.
var oldNodeLabels = map[string]string{
	corev1.LabelFailureDomainBetaZone:               `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	corev1.LabelFailureDomainBetaRegion:             `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	corev1.LabelInstanceType:                        `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"app.kubernetes.io/created-by":                  `deprecated since v1.9`,
	"scheduler.alpha.kubernetes.io/preferAvoidPods": `deprecated since v1.22; use Taints and Tolerations instead`,
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// Node warns of fields that have no meaning any more, and of odd ranges of addresses.
func Node(_ context.Context, n *corev1.Node) []string {
	var out []string
	if n.Spec.ConfigSource != nil {
		out = append(out, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		out = append(out, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		out = append(out, utilvalidation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return out
}

// RuntimeClass warns of deprecated labels of nodes.
func RuntimeClass(_ context.Context, c *nodev1.RuntimeClass) []string {
	var out list
	if c.Scheduling != nil {
		for key := range c.Scheduling.NodeSelector {
			if text := oldNodeLabels[key]; text != "" {
				out.warn(field.NewPath("scheduling", "nodeSelector"), "%s", text)
			}
		}
	}
	return out
}

// NodeLabels warns of deprecated labels of nodes in a selector.
func NodeLabels(at *field.Path, s *metav1.LabelSelector) []string {
	var out list
	if s == nil {
		return nil
	}
	for i, e := range s.MatchExpressions {
		out.nodeLabel(at.Child("matchExpressions").Index(i).Child("key"), e.Key)
	}
	for key := range s.MatchLabels {
		if text := oldNodeLabels[key]; text != "" {
			out.warn(at.Child("matchLabels", key), "%s", text)
		}
	}
	return out
}

// NodeSelector warns of deprecated labels of nodes in what chooses nodes.
func NodeSelector(at *field.Path, s *corev1.NodeSelector) []string {
	var out list
	if s == nil {
		return nil
	}
	for i := range s.NodeSelectorTerms {
		out.nodeTerm(at.Child("nodeSelectorTerms").Index(i), &s.NodeSelectorTerms[i])
	}
	return out
}

func (l *list) nodeTerm(at *field.Path, t *corev1.NodeSelectorTerm) {
	for i, e := range t.MatchExpressions {
		l.nodeLabel(at.Child("matchExpressions").Index(i).Child("key"), e.Key)
	}
}

func (l *list) nodeLabel(at *field.Path, key string) {
	if text := oldNodeLabels[key]; text != "" {
		l.warn(at, "%s is %s", key, text)
	}
}

// labelValues warns of what no label can have. It is refused where nodes must match, but not where they should.
func (l *list) labelValues(at *field.Path, t *corev1.NodeSelectorTerm) {
	for i, e := range t.MatchExpressions {
		for j, v := range e.Values {
			for _, msg := range utilvalidation.IsValidLabelValue(v) {
				l.warn(at.Child("matchExpressions").Index(i).Child("values").Index(j), "%s is invalid, %s", v, msg)
			}
		}
	}
}

// fractions warns of parts of bytes.
func (l *list) fractions(at *field.Path, amounts corev1.ResourceList, names ...corev1.ResourceName) {
	for _, name := range names {
		if q, ok := amounts[name]; ok && q.MilliValue()%1000 != 0 {
			l.warn(at.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}
