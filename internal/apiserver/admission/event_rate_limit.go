package admission

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/lru"
)

// limitType is what a limit counts together.
type limitType string

// limitTypes are the types, each with what tells apart the requests that it counts.
var limitTypes = map[limitType]func(admission.Attributes) string{
	"Server":          func(admission.Attributes) string { return "" },
	"Namespace":       admission.Attributes.GetNamespace,
	"User":            func(a admission.Attributes) string { return a.GetUserInfo().GetName() },
	"SourceAndObject": sourceAndObject,
}

// defaultCacheSize is how many limiters a limit has at most, unless it says otherwise.
const defaultCacheSize = 4096

// eventLimits is the configuration: kind Configuration of eventratelimit.admission.k8s.io/v1alpha1.
type eventLimits struct {
	metav1.TypeMeta `json:",inline"`
	Limits          []eventLimit `json:"limits"`
}

type eventLimit struct {
	Type limitType `json:"type"`
	// QPS is how many events a second are admitted once Burst of them were.
	QPS   int32 `json:"qps"`
	Burst int32 `json:"burst"`
	// CacheSize is how many namespaces, users or sources are counted; those that have been quiet for
	// longest are forgotten.
	CacheSize int32 `json:"cacheSize,omitempty"`
}

// eventRateLimit limits how many events are written. Other than upstream's, it counts those of the
// group events.k8s.io, too: they are the same objects.
type eventRateLimit struct {
	limits []*eventLimiter
	now    func() time.Time
}

var _ admission.ValidationInterface = (*eventRateLimit)(nil)

// eventLimiter enforces one limit.
type eventLimiter struct {
	eventLimit
	limiters *lru.Cache // *rate.Limiter by key
}

func newEventRateLimit(config io.Reader, now func() time.Time) (admission.Interface, error) {
	const name = "EventRateLimit"
	var c eventLimits
	if config != nil {
		if err := readStrict(name, config, &c); err != nil {
			return nil, err
		}
		if err := checkKind(name, c.APIVersion, c.Kind, "eventratelimit.admission.k8s.io/v1alpha1"); err != nil {
			return nil, err
		}
	}
	if errs := c.validate(); len(errs) > 0 {
		return nil, fmt.Errorf("configuration of admission plugin %s: %w", name, errs.ToAggregate())
	}
	p := &eventRateLimit{now: now}
	for _, l := range c.Limits {
		size := int(l.CacheSize)
		if size <= 0 {
			size = defaultCacheSize
		}
		p.limits = append(p.limits, &eventLimiter{l, lru.New(size)})
	}
	return p, nil
}

func (c *eventLimits) validate() field.ErrorList {
	var errs field.ErrorList
	limits := field.NewPath("limits")
	if len(c.Limits) == 0 {
		errs = append(errs, field.Invalid(limits, c.Limits, "must not be empty"))
	}
	for i, l := range c.Limits {
		at := limits.Index(i)
		if limitTypes[l.Type] == nil {
			errs = append(errs, field.NotSupported(at.Child("type"), l.Type, []limitType{"Namespace", "Server", "SourceAndObject", "User"}))
		}
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Child("burst"), l.Burst, "must be positive"))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Child("qps"), l.QPS, "must be positive"))
		}
		if l.Type != "Server" && l.CacheSize < 0 {
			errs = append(errs, field.Invalid(at.Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
	}
	return errs
}

func (*eventRateLimit) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *eventRateLimit) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	groups := []string{corev1.GroupName, "events.k8s.io"}
	if a.GetKind().Kind != "Event" || !slices.Contains(groups, a.GetKind().Group) || a.IsDryRun() {
		return nil
	}
	var errs []error
	for _, l := range p.limits { // each counts the event, whatever the others say
		if key := limitTypes[l.Type](a); !l.limiter(key).AllowN(p.now(), 1) {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", l.Type, key))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewTooManyRequestsError(utilerrors.NewAggregate(errs).Error())
}

// limiter returns what counts for a key. Two first requests may each get one of their own; one of the
// two is forgotten.
func (l *eventLimiter) limiter(key string) *rate.Limiter {
	if got, ok := l.limiters.Get(key); ok {
		if r, ok := got.(*rate.Limiter); ok {
			return r
		}
	}
	r := rate.NewLimiter(rate.Limit(l.QPS), int(l.Burst))
	l.limiters.Add(key, r)
	return r
}

func sourceAndObject(a admission.Attributes) string {
	e, ok := a.GetObject().(*corev1.Event)
	if !ok {
		return ""
	}
	of := e.InvolvedObject
	return strings.Join([]string{e.Source.Component, e.Source.Host, of.Kind, of.Namespace, of.Name, string(of.UID), of.APIVersion}, "")
}
