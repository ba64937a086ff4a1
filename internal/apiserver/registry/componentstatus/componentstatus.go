// Package componentstatus answers whether the parts of the control plane are healthy: the scheduler,
// the controllers, etcd. Nothing is stored; each request looks. The kind has been deprecated since
// Kubernetes 1.19, but people still run `kubectl get componentstatuses`.
package componentstatus

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/apiserver/registry"
)

// patience is how long a component has for its answer.
const patience = 20 * time.Second

// Health is what a component says.
type Health struct {
	Status  corev1.ConditionStatus
	Message string
	Err     error
}

// Check asks a component.
type Check func(ctx context.Context) Health

// Inside is the check of a component in this process, which ends with the process.
func Inside(context.Context) Health { return Health{Status: corev1.ConditionTrue, Message: "ok"} }

// Try makes a check of a function that returns what is wrong.
func Try(f func(ctx context.Context) error) Check {
	return func(ctx context.Context) Health {
		if err := f(ctx); err != nil {
			return Health{Status: corev1.ConditionFalse, Err: err}
		}
		return Health{Status: corev1.ConditionTrue, Message: "ok"}
	}
}

// Local returns a check of /healthz at a port of this machine, where upstream looks for components.
// Whose certificate is shown there does not matter: no secret is sent.
func Local(port int) Check {
	client := &http.Client{
		Timeout:   patience,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	return func(ctx context.Context) Health {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/healthz", port), nil)
		if err != nil {
			return Health{Status: corev1.ConditionUnknown, Err: err}
		}
		answer, err := client.Do(request)
		if err != nil {
			return Health{Status: corev1.ConditionFalse, Message: err.Error()}
		}
		const enough = 10 << 10
		body, err := io.ReadAll(io.LimitReader(answer.Body, enough))
		if closeErr := answer.Body.Close(); err == nil {
			err = closeErr
		}
		switch {
		case err != nil:
			return Health{Status: corev1.ConditionUnknown, Err: err}
		case answer.StatusCode < http.StatusOK || answer.StatusCode >= http.StatusBadRequest:
			return Health{Status: corev1.ConditionFalse, Message: fmt.Sprintf("HTTP probe failed with statuscode: %d", answer.StatusCode)}
		}
		return Health{Status: corev1.ConditionTrue, Message: string(body)}
	}
}

// Store serves component statuses.
type Store struct {
	rest.TableConvertor
	checks map[string]Check
}

var (
	_ rest.Getter               = (*Store)(nil)
	_ rest.Lister               = (*Store)(nil)
	_ rest.Scoper               = (*Store)(nil)
	_ rest.SingularNameProvider = (*Store)(nil)
	_ rest.ShortNamesProvider   = (*Store)(nil)
)

// New returns a store of the components that checks names.
func New(checks map[string]Check, table registry.Table[*corev1.ComponentStatus]) *Store {
	return &Store{registry.NewTableConvertor(table, corev1.Resource("componentstatuses")), checks}
}

// New implements rest.Storage.
func (*Store) New() runtime.Object { return &corev1.ComponentStatus{} }

// NewList implements rest.Lister.
func (*Store) NewList() runtime.Object { return &corev1.ComponentStatusList{} }

// Destroy implements rest.Storage.
func (*Store) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*Store) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (*Store) GetSingularName() string { return "componentstatus" }

// ShortNames implements rest.ShortNamesProvider.
func (*Store) ShortNames() []string { return []string{"cs"} }

// Get implements rest.Getter.
func (s *Store) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	check, ok := s.checks[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("componentstatus"), name)
	}
	return status(ctx, name, check), nil
}

// List implements rest.Lister. It asks all components at once.
func (s *Store) List(ctx context.Context, opts *internalversion.ListOptions) (runtime.Object, error) {
	names := slices.Sorted(maps.Keys(s.checks))
	if opts != nil {
		names = slices.DeleteFunc(names, func(name string) bool {
			own := fields.Set{"metadata.name": name, "metadata.namespace": ""}
			return opts.LabelSelector != nil && !opts.LabelSelector.Matches(labels.Set{}) ||
				opts.FieldSelector != nil && !opts.FieldSelector.Matches(own)
		})
	}
	list := &corev1.ComponentStatusList{Items: make([]corev1.ComponentStatus, len(names))}
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() { list.Items[i] = *status(ctx, name, s.checks[name]) })
	}
	asking.Wait()
	return list, nil
}

func status(ctx context.Context, name string, check Check) *corev1.ComponentStatus {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	health := check(ctx)
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: health.Status, Message: health.Message}
	if health.Err != nil {
		condition.Error = health.Err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []corev1.ComponentCondition{condition}}
}
