package validation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxPolicyRules      = 20
	maxPolicyExitCodes  = 255
	maxPolicyConditions = 20
	maxIndexesText      = 64 << 10
)

// The values of a job's policies, sorted.
var (
	failureActions = []batchv1.PodFailurePolicyAction{
		batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore,
	}
	exitCodeOperators   = []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	conditionStatuses   = []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
	replacementPolicies = []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
)

// knownValue is like oneOf, and lists the values if there is none.
func knownValue[T ~string](p *problems, at path, value T, allowed []T) {
	if value == "" {
		p.required(at, fmt.Sprintf("valid values: %q", allowed))
		return
	}
	oneOf(p, at, value, allowed...)
}

// jobPolicies checks when a job fails, succeeds and replaces pods.
func (p *problems) jobPolicies(at path, s *batchv1.JobSpec) {
	if s.PodFailurePolicy != nil {
		p.failurePolicy(at.Child("podFailurePolicy", "rules"), s)
	}
	if s.SuccessPolicy != nil {
		if isIndexed(s) {
			p.successPolicy(at.Child("successPolicy", "rules"), s)
		} else {
			p.invalid(at.Child("successPolicy"), *s.SuccessPolicy, "requires indexed completion mode")
		}
	}
	if r := s.PodReplacementPolicy; r != nil {
		allowed := replacementPolicies
		if s.PodFailurePolicy != nil {
			allowed = []batchv1.PodReplacementPolicy{batchv1.Failed}
		}
		oneOf(p, at.Child("podReplacementPolicy"), *r, allowed...)
	}
}

func (p *problems) failurePolicy(at path, s *batchv1.JobSpec) {
	rules := s.PodFailurePolicy.Rules
	if len(rules) > maxPolicyRules {
		p.add(field.TooMany(at, len(rules), maxPolicyRules))
	}
	for i := range rules {
		r, at := &rules[i], at.Index(i)
		if r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil {
			p.invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set")
		}
		knownValue(p, at.Child("action"), r.Action, failureActions)
		if r.OnExitCodes != nil {
			p.exitCodes(at.Child("onExitCodes"), r.OnExitCodes, &s.Template.Spec)
		}
		p.failureConditions(at.Child("onPodConditions"), r.OnPodConditions)
		switch codes, conditions := r.OnExitCodes != nil, len(r.OnPodConditions) > 0; {
		case codes && conditions:
			p.invalid(at, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		case !codes && !conditions:
			p.invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
		}
	}
}

func (p *problems) failureConditions(at path, list []batchv1.PodFailurePolicyOnPodConditionsPattern) {
	if len(list) > maxPolicyConditions {
		p.add(field.TooMany(at, len(list), maxPolicyConditions))
	}
	for i, c := range list {
		at := at.Index(i)
		p.qualified(at.Child("type"), string(c.Type))
		knownValue(p, at.Child("status"), c.Status, conditionStatuses)
	}
}

func (p *problems) exitCodes(at path, r *batchv1.PodFailurePolicyOnExitCodesRequirement, pod *corev1.PodSpec) {
	knownValue(p, at.Child("operator"), r.Operator, exitCodeOperators)
	if r.ContainerName != nil {
		named := func(c corev1.Container) bool { return c.Name == *r.ContainerName }
		if !slices.ContainsFunc(pod.Containers, named) && !slices.ContainsFunc(pod.InitContainers, named) {
			p.invalid(at.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template")
		}
	}
	values := at.Child("values")
	if len(r.Values) == 0 {
		p.invalid(values, r.Values, "at least one value is required")
	} else if len(r.Values) > maxPolicyExitCodes {
		p.add(field.TooMany(values, len(r.Values), maxPolicyExitCodes))
	}
	for i, code := range r.Values {
		if r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && code == 0 {
			p.invalid(values.Index(i), code, "must not be 0 for the In operator")
		}
		if slices.Contains(r.Values[:i], code) {
			p.add(field.Duplicate(values.Index(i), code))
		}
	}
	if !slices.IsSorted(r.Values) {
		p.invalid(values, r.Values, "must be ordered")
	}
}

func (p *problems) successPolicy(at path, s *batchv1.JobSpec) {
	rules := s.SuccessPolicy.Rules
	if len(rules) == 0 {
		p.required(at, "at least one rules must be specified when the successPolicy is specified")
	}
	if len(rules) > maxPolicyRules {
		p.add(field.TooMany(at, len(rules), maxPolicyRules))
	}
	var completions int32 // if unset, that is reported already
	if s.Completions != nil {
		completions = *s.Completions
	}
	for i := range rules {
		p.successRule(at.Index(i), &rules[i], completions)
	}
}

func (p *problems) successRule(at path, r *batchv1.SuccessPolicyRule, completions int32) {
	if r.SucceededCount == nil && r.SucceededIndexes == nil {
		p.required(at, "at least one of succeededCount or succeededIndexes must be specified")
	}
	var total int32
	if text := r.SucceededIndexes; text != nil {
		at := at.Child("succeededIndexes")
		if len(*text) > maxIndexesText {
			p.add(field.TooLong(at, "", maxIndexesText))
		}
		intervals, err := parseIndexes(*text, completions)
		if err != nil {
			p.invalid(at, *text, "error parsing succeededIndexes: %v", err)
		} else {
			total = numberOf(intervals)
		}
	}
	n := r.SucceededCount
	if n == nil {
		return
	}
	p.counts(at, counted("succeededCount", n))
	if *n > completions {
		p.invalid(at.Child("succeededCount"), *n, "must be less than or equal to %d (the number of specified completions)", completions)
	}
	if r.SucceededIndexes != nil && *n > total {
		p.invalid(at.Child("succeededCount"), *n, "must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", total)
	}
}

// interval is a range of the indexes of a job, both ends included.
type interval struct{ first, last int32 }

// parseIndexes reads a list like "1,3-5,7". It returns the intervals that can be read, and the
// first error.
func parseIndexes(text string, completions int32) ([]interval, error) {
	if text == "" {
		return nil, nil
	}
	var out []interval
	var first error
	for part := range strings.SplitSeq(text, ",") {
		in, err := parseInterval(part, completions)
		if err == nil && len(out) > 0 && out[len(out)-1].last >= in.first {
			err = fmt.Errorf("non-increasing order, previous: %d, current: %d", out[len(out)-1].last, in.first)
		}
		if err == nil {
			out = append(out, in)
		} else if first == nil {
			first = err
		}
	}
	return out, first
}

func parseInterval(text string, completions int32) (interval, error) {
	ends := strings.Split(text, "-")
	if len(ends) > 2 {
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	var numbers []int32
	for _, end := range ends {
		n, err := strconv.Atoi(end)
		if err != nil {
			return interval{}, fmt.Errorf("cannot convert string to integer for index: %q", end)
		}
		if n >= int(completions) {
			return interval{}, fmt.Errorf("too large index: %q", end)
		}
		numbers = append(numbers, int32(n))
	}
	in := interval{numbers[0], numbers[len(numbers)-1]}
	if len(numbers) == 2 && in.first >= in.last {
		return interval{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", in.first, in.last)
	}
	return in, nil
}

func numberOf(list []interval) int32 {
	var n int32
	for _, in := range list {
		n += in.last - in.first + 1
	}
	return n
}

// overlap returns the first index that is in both sorted lists.
func overlap(a, b []interval) (int32, bool) {
	for len(a) > 0 && len(b) > 0 {
		if a[0].first <= b[0].last && b[0].first <= a[0].last {
			return max(a[0].first, b[0].first), true
		}
		if a[0].first <= b[0].first {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return 0, false
}
