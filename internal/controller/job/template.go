package job

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

const (
	indexVariable = "JOB_COMPLETION_INDEX"
	// maxPrefix is how long a prefix of a generated name may be: a label, without five random letters.
	maxPrefix = 63 - 5
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// podFor returns the pod that a plan asks for.
func podFor(j *batchv1.Job, n newPod) *v1.Pod {
	p := pods.FromTemplate(&j.Spec.Template, j, kind)
	if !isTracked(p) {
		p.Finalizers = append(p.Finalizers, finalizer)
	}
	if n.index == noIndex {
		return p
	}
	index := strconv.Itoa(n.index)
	p.Labels = with(p.Labels, batchv1.JobCompletionIndexAnnotation, index)
	p.Annotations = with(p.Annotations, batchv1.JobCompletionIndexAnnotation, index)
	p.Spec.Hostname = j.Name + "-" + index
	end := "-" + index + "-"
	p.GenerateName = j.Name[:min(len(j.Name), maxPrefix-len(end))] + end
	for c := range pods.Containers(&p.Spec) {
		addIndexVariable(c)
	}
	if limitsIndexes(j) {
		countFailures(j, p, n.replaces)
	}
	return p
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// addIndexVariable tells the container its index, unless the template says something else.
func addIndexVariable(c *v1.Container) {
	if slices.ContainsFunc(c.Env, func(e v1.EnvVar) bool { return e.Name == indexVariable }) {
		return
	}
	path := fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)
	from := &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
	c.Env = append(c.Env, v1.EnvVar{Name: indexVariable, ValueFrom: from})
}

// countFailures tells a pod how often its index has failed before. last is the pod that it replaces,
// or nil.
func countFailures(j *batchv1.Job, p, last *v1.Pod) {
	var counted, ignored int32
	if last != nil {
		counted, ignored = failuresBefore(last)
		if judge(j.Spec.PodFailurePolicy, last).counts() {
			counted = min(counted, math.MaxInt32-1) + 1
		} else {
			ignored = min(ignored, math.MaxInt32-1) + 1
		}
	}
	p.Annotations = with(p.Annotations, batchv1.JobIndexFailureCountAnnotation, strconv.Itoa(int(counted)))
	if ignored > 0 {
		p.Annotations = with(p.Annotations, batchv1.JobIndexIgnoredFailureCountAnnotation, strconv.Itoa(int(ignored)))
	}
}
