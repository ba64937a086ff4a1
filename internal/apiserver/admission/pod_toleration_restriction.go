package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
)

// What a namespace says about its pods' tolerations, each a list in JSON.
const (
	defaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	tolerationsAllowedAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// tolerationsConfig is the configuration, for namespaces without annotations: kind Configuration of
// podtolerationrestriction.admission.k8s.io/v1alpha1.
type tolerationsConfig struct {
	metav1.TypeMeta `json:",inline"`
	Default         []corev1.Toleration `json:"default,omitempty"`
	Allowed         []corev1.Toleration `json:"whitelist,omitempty"`
}

// podTolerationRestriction gives pods the default tolerations of their namespace, and refuses those
// that the namespace does not allow.
type podTolerationRestriction struct {
	lookup *registry.Lookup
	config tolerationsConfig
}

var (
	_ admission.MutationInterface   = (*podTolerationRestriction)(nil)
	_ admission.ValidationInterface = (*podTolerationRestriction)(nil)
)

func newPodTolerationRestriction(lookup *registry.Lookup, config io.Reader) (admission.Interface, error) {
	const name = "PodTolerationRestriction"
	p := &podTolerationRestriction{lookup: lookup}
	if config == nil {
		return p, nil
	}
	if err := readStrict(name, config, &p.config); err != nil {
		return nil, err
	}
	if err := checkKind(name, p.config.APIVersion, p.config.Kind, "podtolerationrestriction.admission.k8s.io/v1alpha1"); err != nil {
		return nil, err
	}
	errs := append(validation.Tolerations(p.config.Default, field.NewPath("default")),
		validation.Tolerations(p.config.Allowed, field.NewPath("whitelist"))...)
	if len(errs) > 0 {
		return nil, fmt.Errorf("configuration of admission plugin %s: %w", name, errs.ToAggregate())
	}
	return p, nil
}

func (*podTolerationRestriction) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *podTolerationRestriction) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok {
		return nil
	}
	var more []corev1.Toleration
	if a.GetOperation() == admission.Create {
		var err error
		if more, _, err = p.listed(ctx, a, defaultTolerationsAnnotation, p.config.Default); err != nil {
			return err
		}
	}
	if qos.ComputePodQOS(pod) != corev1.PodQOSBestEffort {
		more = append(slices.Clone(more), corev1.Toleration{
			Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
		})
	}
	if len(more) > 0 {
		pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, more)
	}
	return p.Validate(ctx, a, o)
}

func (p *podTolerationRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, scope, err := p.listed(ctx, a, tolerationsAllowedAnnotation, p.config.Allowed)
	if err != nil || len(allowed) == 0 {
		return err
	}
	for _, t := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(allowed, func(w corev1.Toleration) bool { return includes(&w, &t) }) {
			return forbid(a, "pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}
	return nil
}

// listed returns the list in an annotation of the request's namespace, or else the cluster's. An empty
// annotation is an empty list.
func (p *podTolerationRestriction) listed(
	ctx context.Context, a admission.Attributes, annotation string, cluster []corev1.Toleration,
) (list []corev1.Toleration, scope string, err error) {
	ns, err := namespaceOf(ctx, p.lookup, a)
	if err != nil {
		return nil, "", err
	}
	doc, ok := ns.Annotations[annotation]
	switch {
	case !ok:
		return cluster, "cluster", nil
	case doc == "":
		return nil, "namespace", nil
	}
	if err := json.Unmarshal([]byte(doc), &list); err != nil {
		return nil, "", forbid(a, "annotation %s of namespace %s: %w", annotation, ns.Name, err)
	}
	if list == nil { // null
		return cluster, "cluster", nil
	}
	return list, "namespace", nil
}

// mergeTolerations returns the tolerations of both lists without those that another one includes.
func mergeTolerations(first, second []corev1.Toleration) []corev1.Toleration {
	all := slices.Concat(first, second)
	var merged []corev1.Toleration
	for i := range all {
		t := &all[i]
		before := slices.ContainsFunc(merged, func(o corev1.Toleration) bool { return includes(&o, t) })
		after := slices.ContainsFunc(all[i+1:], func(o corev1.Toleration) bool {
			return includes(&o, t) && !apiequality.Semantic.DeepEqual(&o, t)
		})
		if !before && !after {
			merged = append(merged, *t)
		}
	}
	return merged
}

// includes reports whether wide tolerates all that t does.
func includes(wide, t *corev1.Toleration) bool {
	if apiequality.Semantic.DeepEqual(wide, t) {
		return true
	}
	anyKey := wide.Key == "" && wide.Operator == corev1.TolerationOpExists
	if !anyKey && wide.Key != t.Key || wide.Effect != "" && wide.Effect != t.Effect {
		return false
	}
	shorter := wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds)
	if shorter {
		return false
	}
	switch wide.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
	}
	return false
}
