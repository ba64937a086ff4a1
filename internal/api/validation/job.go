package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

const (
	maxManagedBy = 63
	// An indexed job lists its indexes in its status: these keep that short.
	maxIndexedParallelism = 100_000
	maxFailedIndexes      = 100_000
	manyCompletions       = 100_000
	maxParallelismIfMany  = 10_000
	maxFailedIfMany       = 10_000
)

// Job checks a new job.
func Job(j *batchv1.Job) field.ErrorList {
	p := &problems{}
	p.job(j, true)
	return p.list
}

// job checks what must hold on every write of a job; prefixed requires the labels with a prefix.
func (p *problems) job(j *batchv1.Job, prefixed bool) {
	p.generatedSelector(j, prefixed)
	at, spec := field.NewPath("spec"), &j.Spec
	p.jobSpec(at, spec)
	if spec.Selector == nil {
		p.required(at.Child("selector"), "")
	} else {
		p.addAll(metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	}
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil {
		p.matchesTemplate(at.Child("template"), selector, &spec.Template)
	}
	if isIndexed(spec) && spec.Completions != nil && *spec.Completions > 0 {
		host := fmt.Sprintf("%s-%d", j.Name, *spec.Completions-1)
		if len(utilvalidation.IsDNS1123Label(host)) > 0 {
			p.invalid(field.NewPath("metadata", "name"), j.Name, "will not able to create pod with invalid DNS label: %s", host)
		}
	}
}

func isIndexed(s *batchv1.JobSpec) bool {
	return s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
}

// generatedSelector checks that a selector that was to be generated selects this job's pods alone.
func (p *problems) generatedSelector(j *batchv1.Job, prefixed bool) {
	if (j.Spec.ManualSelector != nil && *j.Spec.ManualSelector) || j.Spec.Selector == nil {
		return
	}
	if j.UID == "" {
		p.required(field.NewPath("metadata", "uid"), "")
	}
	made, want := pods.JobLabels(j), labels.Set{}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if prefixed || !strings.Contains(name, "/") {
			want[name] = made[name]
			p.hasLabel(field.NewPath("spec", "template", "metadata", "labels"), j.Spec.Template.Labels, name, want[name])
		}
	}
	if selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !selector.Matches(want) {
		p.invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated")
	}
}

func (p *problems) hasLabel(at path, have map[string]string, name, want string) {
	at = at.Key(name)
	switch value, ok := have[name]; {
	case !ok:
		p.required(at, fmt.Sprintf("must be '%s'", want))
	case value != want:
		p.invalid(at, have, "must be '%s'", want)
	}
}

// jobSpec checks what a job and the template of a cron job have in common.
func (p *problems) jobSpec(at path, s *batchv1.JobSpec) {
	p.counts(at, counted("parallelism", s.Parallelism), counted("completions", s.Completions),
		counted("activeDeadlineSeconds", s.ActiveDeadlineSeconds), counted("backoffLimit", s.BackoffLimit),
		counted("ttlSecondsAfterFinished", s.TTLSecondsAfterFinished), counted("backoffLimitPerIndex", s.BackoffLimitPerIndex),
		counted("maxFailedIndexes", s.MaxFailedIndexes))
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		p.required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified")
	}
	if m := s.ManagedBy; m != nil {
		p.addAll(utilvalidation.IsDomainPrefixedPath(at.Child("managedBy"), *m))
		if len(*m) > maxManagedBy {
			p.add(field.TooLong(at.Child("managedBy"), "", maxManagedBy))
		}
	}
	if m := s.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion && *m != batchv1.IndexedCompletion {
		p.add(field.NotSupported(at.Child("completionMode"), *m, []batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion}))
	}
	if isIndexed(s) {
		p.indexed(at, s)
	} else if s.CompletionMode == nil || *s.CompletionMode == batchv1.NonIndexedCompletion {
		const only = "requires indexed completion mode"
		if n := s.BackoffLimitPerIndex; n != nil {
			p.invalid(at.Child("backoffLimitPerIndex"), *n, only)
		}
		if n := s.MaxFailedIndexes; n != nil {
			p.invalid(at.Child("maxFailedIndexes"), *n, only)
		}
	}
	p.jobPolicies(at, s)
	p.podTemplate(at.Child("template"), &s.Template)
	p.jobRestarts(at.Child("template", "spec", "restartPolicy"), s)
}

func (p *problems) indexed(at path, s *batchv1.JobSpec) {
	parallelism, completions, failed := at.Child("parallelism"), at.Child("completions"), at.Child("maxFailedIndexes")
	if s.Completions == nil {
		p.required(completions, "when completion mode is Indexed")
	}
	if n := s.Parallelism; n != nil && *n > maxIndexedParallelism {
		p.invalid(parallelism, *n, "must be less than or equal to %d when completion mode is Indexed", maxIndexedParallelism)
	}
	if n := s.MaxFailedIndexes; n != nil {
		if s.Completions != nil && *n > *s.Completions {
			p.invalid(failed, *n, "must be less than or equal to completions")
		}
		if *n > maxFailedIndexes {
			p.invalid(failed, *n, "must be less than or equal to %d", maxFailedIndexes)
		}
	}
	if s.Completions == nil || *s.Completions <= manyCompletions || s.BackoffLimitPerIndex == nil {
		return
	}
	const limit = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if n := s.Parallelism; n != nil && *n > maxParallelismIfMany {
		p.invalid(parallelism, *n, limit, maxParallelismIfMany, manyCompletions)
	}
	if n := s.MaxFailedIndexes; n == nil {
		p.required(failed, fmt.Sprintf("must be specified when completions is above %d", manyCompletions))
	} else if *n > maxFailedIfMany {
		p.invalid(failed, *n, limit, maxFailedIfMany, manyCompletions)
	}
}

// jobRestarts checks that the pods of a job can end.
func (p *problems) jobRestarts(at path, s *batchv1.JobSpec) {
	switch policy := s.Template.Spec.RestartPolicy; {
	case policy == corev1.RestartPolicyAlways || policy == "":
		p.required(at, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))
	case policy != corev1.RestartPolicyOnFailure && policy != corev1.RestartPolicyNever:
		p.add(field.NotSupported(at, policy, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	case s.PodFailurePolicy != nil && policy != corev1.RestartPolicyNever:
		p.invalid(at, policy, "only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)
	}
}

// JobUpdate checks a job that replaces old.
func JobUpdate(j, old *batchv1.Job) field.ErrorList {
	p := &problems{}
	_, named := old.Spec.Template.Labels[batchv1.JobNameLabel]
	_, owned := old.Spec.Template.Labels[batchv1.ControllerUidLabel]
	p.job(j, named && owned)
	at, spec, was := field.NewPath("spec"), &j.Spec, &old.Spec
	p.completionsUpdate(at, spec, was)
	p.jobTemplateUpdate(at, j, old)
	p.addAll(apivalidation.ValidateImmutableField(spec.Selector, was.Selector, at.Child("selector")))
	p.addAll(apivalidation.ValidateImmutableField(spec.CompletionMode, was.CompletionMode, at.Child("completionMode")))
	p.addAll(apivalidation.ValidateImmutableField(spec.PodFailurePolicy, was.PodFailurePolicy, at.Child("podFailurePolicy")))
	p.addAll(apivalidation.ValidateImmutableField(spec.BackoffLimitPerIndex, was.BackoffLimitPerIndex, at.Child("backoffLimitPerIndex")))
	p.addAll(apivalidation.ValidateImmutableField(spec.ManagedBy, was.ManagedBy, at.Child("managedBy")))
	p.addAll(apivalidation.ValidateImmutableField(spec.SuccessPolicy, was.SuccessPolicy, at.Child("successPolicy")))
	return p.list
}

// completionsUpdate lets only indexed jobs grow and shrink, and only as a whole.
func (p *problems) completionsUpdate(spec path, s, old *batchv1.JobSpec) {
	at := spec.Child("completions")
	if !isIndexed(s) {
		p.addAll(apivalidation.ValidateImmutableField(s.Completions, old.Completions, at))
		return
	}
	if s.Completions == nil || apiequality.Semantic.DeepEqual(s.Completions, old.Completions) {
		return
	}
	if s.Parallelism == nil || *s.Completions != *s.Parallelism {
		p.invalid(at, *s.Completions, "can only be modified in tandem with %s", at.Root().Child("parallelism"))
	}
}

// jobTemplateUpdate keeps the template, except that a suspended job without pods can have its pods
// placed elsewhere and sized differently (KEP-2926, KEP-5440).
func (p *problems) jobTemplateUpdate(spec path, j, old *batchv1.Job) {
	t := &j.Spec.Template
	idle := old.Spec.Suspend != nil && *old.Spec.Suspend && old.Status.Active == 0 &&
		(old.Status.StartTime == nil || jobIs(old, batchv1.JobSuspended))
	if !idle {
		p.addAll(apivalidation.ValidateImmutableField(t, &old.Spec.Template, spec.Child("template")))
		return
	}
	was := old.Spec.Template.Spec.DeepCopy()
	was.NodeSelector, was.Tolerations, was.SchedulingGates = t.Spec.NodeSelector, t.Spec.Tolerations, t.Spec.SchedulingGates
	was.Affinity = withNodeAffinityOf(was.Affinity, t.Spec.Affinity)
	withResourcesOf(was.Containers, t.Spec.Containers)
	withResourcesOf(was.InitContainers, t.Spec.InitContainers)
	p.addAll(apivalidation.ValidateImmutableField(t.Spec, *was, spec.Child("template.spec")))
}

// withNodeAffinityOf returns a with the node affinity of b, and nil if both amount to nothing.
func withNodeAffinityOf(a, b *corev1.Affinity) *corev1.Affinity {
	out := corev1.Affinity{}
	if a != nil {
		out = *a
	}
	out.NodeAffinity = nil
	if b == nil && out == (corev1.Affinity{}) {
		return nil
	}
	if b != nil {
		out.NodeAffinity = b.NodeAffinity
	}
	return &out
}

// withResourcesOf gives each container the resources of its counterpart, if the lists match.
func withResourcesOf(list, from []corev1.Container) {
	if len(list) != len(from) {
		return
	}
	for i := range list {
		if list[i].Name == from[i].Name {
			list[i].Resources = from[i].Resources
		}
	}
}

func jobIs(j *batchv1.Job, t batchv1.JobConditionType) bool {
	return conditionIs(j, t, corev1.ConditionTrue)
}

func conditionIs(j *batchv1.Job, t batchv1.JobConditionType, status corev1.ConditionStatus) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == t && c.Status == status })
}
