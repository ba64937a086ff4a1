package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/apiserver/registry"
)

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger gives containers the defaults of their namespace's limit ranges, and enforces minima
// and maxima for pods, containers and claims.
type limitRanger struct {
	ranges *registry.Kept[*corev1.LimitRange]
}

var (
	_ admission.MutationInterface   = (*limitRanger)(nil)
	_ admission.ValidationInterface = (*limitRanger)(nil)
)

func (*limitRanger) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// applies reports whether the request is for a new pod, a resize or a claim.
func (*limitRanger) applies(a admission.Attributes) bool {
	if deleting(a) {
		return false
	}
	switch a.GetResource().GroupResource() {
	case podsResource:
		return (a.GetSubresource() == "" && a.GetOperation() == admission.Create) ||
			(a.GetSubresource() == "resize" && a.GetOperation() == admission.Update)
	case claimsResource:
		return a.GetSubresource() == ""
	}
	return false
}

func (p *limitRanger) limits(ctx context.Context, a admission.Attributes) ([]corev1.LimitRangeItem, error) {
	ranges, err := p.ranges.List(ctx, a.GetNamespace())
	if err != nil {
		return nil, forbid(a, "unable to %s %v at this time because there was an error enforcing limit ranges", a.GetOperation(), a.GetResource())
	}
	var items []corev1.LimitRangeItem
	for _, r := range ranges {
		items = append(items, r.Spec.Limits...)
	}
	return items, nil
}

func (p *limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !p.applies(a) {
		return nil
	}
	items, err := p.limits(ctx, a)
	if err != nil {
		return err
	}
	if len(items) > 0 {
		setDefaults(pod, items)
	}
	return nil
}

func (p *limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !p.applies(a) {
		return nil
	}
	items, err := p.limits(ctx, a)
	if err != nil {
		return err
	}
	var errs []error
	for i := range items {
		switch obj := a.GetObject().(type) {
		case *corev1.Pod:
			errs = append(errs, checkPod(&items[i], obj)...)
		case *corev1.PersistentVolumeClaim:
			errs = append(errs, checkClaim(&items[i], obj)...)
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// setDefaults fills in what containers leave unset, and notes it in an annotation.
func setDefaults(pod *corev1.Pod, items []corev1.LimitRangeItem) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range items {
		if items[i].Type != corev1.LimitTypeContainer {
			continue
		}
		maps.Copy(requests, items[i].DefaultRequest)
		maps.Copy(limits, items[i].Default)
	}
	var notes []string
	for i := range pod.Spec.Containers {
		notes = append(notes, setContainerDefaults(&pod.Spec.Containers[i], "container", requests, limits)...)
	}
	for i := range pod.Spec.InitContainers {
		notes = append(notes, setContainerDefaults(&pod.Spec.InitContainers[i], "init container", requests, limits)...)
	}
	if len(notes) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
	}
}

func setContainerDefaults(c *corev1.Container, kind string, requests, limits corev1.ResourceList) []string {
	setLimits := addMissing(&c.Resources.Limits, limits)
	setRequests := addMissing(&c.Resources.Requests, requests)
	var notes []string
	if len(setRequests) > 0 {
		notes = append(notes, fmt.Sprintf("%s request for %s %s", strings.Join(setRequests, ", "), kind, c.Name))
	}
	if len(setLimits) > 0 {
		notes = append(notes, fmt.Sprintf("%s limit for %s %s", strings.Join(setLimits, ", "), kind, c.Name))
	}
	return notes
}

func addMissing(list *corev1.ResourceList, from corev1.ResourceList) []string {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	var added []string
	for name, q := range from {
		if _, ok := (*list)[name]; !ok {
			(*list)[name] = q.DeepCopy()
			added = append(added, string(name))
		}
	}
	slices.Sort(added)
	return added
}

func checkPod(item *corev1.LimitRangeItem, pod *corev1.Pod) []error {
	switch item.Type {
	case corev1.LimitTypeContainer:
		var errs []error
		for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				errs = append(errs, check(item, containers[i].Resources.Requests, containers[i].Resources.Limits)...)
			}
		}
		return errs
	case corev1.LimitTypePod:
		opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
		return check(item, resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts))
	}
	return nil
}

func checkClaim(item *corev1.LimitRangeItem, claim *corev1.PersistentVolumeClaim) []error {
	if item.Type != corev1.LimitTypePersistentVolumeClaim {
		return nil
	}
	var errs []error
	requests := claim.Spec.Resources.Requests
	for name, least := range item.Min {
		errs = append(errs, atLeast(item.Type, name, least, requests, nil))
	}
	for name, most := range item.Max {
		req, ok := requests[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, item.Type, most.String()))
		case req.Cmp(most) > 0:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type, most.String(), req.String()))
		}
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func check(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	for name, least := range item.Min {
		errs = append(errs, atLeast(item.Type, name, least, requests, limits))
	}
	for name, most := range item.Max {
		errs = append(errs, atMost(item.Type, name, most, requests, limits))
	}
	for name, ratio := range item.MaxLimitRequestRatio {
		errs = append(errs, withinRatio(item.Type, name, ratio, requests, limits))
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func atLeast(kind corev1.LimitType, name corev1.ResourceName, least resource.Quantity, requests, limits corev1.ResourceList) error {
	prefix := fmt.Sprintf("minimum %s usage per %s is %s", name, kind, least.String())
	req, ok := requests[name]
	lim, limited := limits[name]
	switch {
	case !ok:
		return errors.New(prefix + ".  No request is specified")
	case req.Cmp(least) < 0:
		return fmt.Errorf("%s, but request is %s", prefix, req.String())
	case limited && lim.Cmp(least) < 0:
		return fmt.Errorf("%s, but limit is %s", prefix, lim.String())
	}
	return nil
}

func atMost(kind corev1.LimitType, name corev1.ResourceName, most resource.Quantity, requests, limits corev1.ResourceList) error {
	prefix := fmt.Sprintf("maximum %s usage per %s is %s", name, kind, most.String())
	req, requested := requests[name]
	lim, ok := limits[name]
	switch {
	case !ok:
		return errors.New(prefix + ".  No limit is specified")
	case lim.Cmp(most) > 0:
		return fmt.Errorf("%s, but limit is %s", prefix, lim.String())
	case requested && req.Cmp(most) > 0:
		return fmt.Errorf("%s, but request is %s", prefix, req.String())
	}
	return nil
}

func withinRatio(kind corev1.LimitType, name corev1.ResourceName, ratio resource.Quantity, requests, limits corev1.ResourceList) error {
	prefix := fmt.Sprintf("%s max limit to request ratio per %s is %s", name, kind, ratio.String())
	req, lim := requests[name], limits[name]
	if req.IsZero() {
		return errors.New(prefix + ", but no request is specified or request is 0")
	}
	if lim.IsZero() {
		return errors.New(prefix + ", but no limit is specified or limit is 0")
	}
	observed := lim.AsApproximateFloat64() / req.AsApproximateFloat64()
	if observed > ratio.AsApproximateFloat64() {
		return fmt.Errorf("%s, but provided ratio is %f", prefix, observed)
	}
	return nil
}
