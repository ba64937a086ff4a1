package resources

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	apipods "wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func jobs(deps Deps) registry.Row[*batchv1.Job] {
	type job = *batchv1.Job
	spec := field.NewPath("spec")
	return registry.Row[job]{
		Resource:   gvr(batchv1.SchemeGroupVersion, "jobs"),
		Kind:       "Job",
		Singular:   "job",
		Categories: []string{"all"},
		Namespaced: true,
		Traced:     true,
		New:        func() job { return &batchv1.Job{} },
		NewList:    list[batchv1.JobList](),
		Table:      printers.Jobs,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[job]{
			Drop: deps.Features.Job,
			Create: func(_ context.Context, j job) {
				generateSelector(j)
				j.Status, j.Generation = batchv1.JobStatus{}, 1
			},
			Update: func(_ context.Context, j, old job) {
				j.Status = old.Status
				bump(j, old, !apiequality.Semantic.DeepEqual(j.Spec, old.Spec))
			},
			Validate:       onCreate(validation.Job),
			ValidateUpdate: onUpdate(validation.JobUpdate),
			WarnNew: func(_ context.Context, j job) []string {
				return append(warnings.OwnerName(j.Name), jobWarnings(spec, &j.Spec)...)
			},
			WarnUpdate: func(_ context.Context, j, old job) []string {
				if j.Generation == old.Generation {
					return nil
				}
				return jobWarnings(spec, &j.Spec)
			},
			Garbage: rest.OrphanDependents, // as it has always been in batch/v1
			Reset:   []string{"status"},
		},
		Status: &registry.Strategy[job]{
			Update:         func(_ context.Context, j, old job) { j.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.JobStatusUpdate),
			Reset:          []string{"spec"},
		},
		Fields: func(j job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		},
		FieldLabels: []string{"status.successful"},
		Endpoints: func(row *registry.Endpoints[job]) map[string]rest.Storage {
			return map[string]rest.Storage{"": &jobStore{row.Main}}
		},
	}
}

// generateSelector gives a new job a selector of its own, and its pods the labels for that, unless
// the job brings its selector. Labels that contradict these are left for validation to refuse.
func generateSelector(j *batchv1.Job) {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return
	}
	labels := apipods.JobLabels(j)
	j.Spec.Template.Labels = withDefaults(j.Spec.Template.Labels, labels)
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	own := map[string]string{batchv1.ControllerUidLabel: labels[batchv1.ControllerUidLabel]}
	j.Spec.Selector.MatchLabels = withDefaults(j.Spec.Selector.MatchLabels, own)
}

// withDefaults adds what m lacks. Afterwards m is not nil.
func withDefaults(m, values map[string]string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	for key, value := range values {
		if _, ok := m[key]; !ok {
			m[key] = value
		}
	}
	return m
}

func jobWarnings(at *field.Path, s *batchv1.JobSpec) []string {
	const many, tooMany = 100_000, 10_000
	var out []string
	indexed := s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
	if indexed && s.Completions != nil && *s.Completions > many && s.Parallelism != nil && *s.Parallelism > tooMany {
		out = append(out, fmt.Sprintf("%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail", at))
	}
	return append(out, warnings.Template(at.Child("template"), &s.Template)...)
}

// jobStore warns of what becomes of the pods of a deleted job.
type jobStore struct{ *registry.Store }

// Delete implements rest.GracefulDeleter.
func (s *jobStore) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	warnOfPods(ctx, opts)
	return s.Store.Delete(ctx, name, validate, opts)
}

// DeleteCollection implements rest.CollectionDeleter.
func (s *jobStore) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions, which *internalversion.ListOptions) (runtime.Object, error) {
	warnOfPods(ctx, opts)
	return s.Store.DeleteCollection(ctx, validate, opts, which)
}

func warnOfPods(ctx context.Context, opts *metav1.DeleteOptions) {
	if opts == nil || opts.PropagationPolicy != nil || opts.OrphanDependents != nil { //nolint:staticcheck // clients still send it
		return
	}
	warning.AddWarning(ctx, "", "child pods are preserved by default when jobs are deleted; "+
		"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning")
}

func cronJobs(deps Deps) registry.Row[*batchv1.CronJob] {
	type cronJob = *batchv1.CronJob
	job := field.NewPath("spec", "jobTemplate", "spec")
	return registry.Row[cronJob]{
		Resource:   gvr(batchv1.SchemeGroupVersion, "cronjobs"),
		Kind:       "CronJob",
		Singular:   "cronjob",
		ShortNames: []string{"cj"},
		Categories: []string{"all"},
		Namespaced: true,
		New:        func() cronJob { return &batchv1.CronJob{} },
		NewList:    list[batchv1.CronJobList](),
		Table:      printers.CronJobs,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[cronJob]{
			Drop: deps.Features.CronJob,
			Create: func(_ context.Context, j cronJob) {
				j.Status, j.Generation = batchv1.CronJobStatus{}, 1
			},
			Update: func(_ context.Context, j, old cronJob) {
				j.Status = old.Status
				bump(j, old, !apiequality.Semantic.DeepEqual(j.Spec, old.Spec))
			},
			Validate:       onCreate(validation.CronJob),
			ValidateUpdate: onUpdate(validation.CronJobUpdate),
			WarnNew: func(_ context.Context, j cronJob) []string {
				return append(warnings.OwnerName(j.Name), jobWarnings(job, &j.Spec.JobTemplate.Spec)...)
			},
			WarnUpdate: func(_ context.Context, j, old cronJob) []string {
				var out []string
				if j.Generation != old.Generation {
					out = jobWarnings(job, &j.Spec.JobTemplate.Spec)
				}
				if strings.Contains(j.Spec.Schedule, "TZ") {
					out = append(out, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
				}
				return out
			},
			Reset: []string{"status"},
		},
		Status: &registry.Strategy[cronJob]{
			Update: func(_ context.Context, j, old cronJob) { j.Spec = old.Spec },
			Reset:  []string{"spec"},
		},
	}
}
