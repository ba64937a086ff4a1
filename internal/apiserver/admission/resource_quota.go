package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/quota"
	"wherry.dev/internal/apiserver/registry"
)

// pendingFor is how long an admitted object may take to appear in the watch cache
// before it no longer counts. One that was not created after all counts that long.
const pendingFor = 10 * time.Second

// resourceQuota holds a namespace to its quotas. Usage is what storage holds, plus
// what has been admitted and is still on its way there.
type resourceQuota struct {
	lookup *registry.Lookup

	mu      sync.Mutex
	pending map[string]map[types.UID]pendingUse // by namespace
}

type pendingUse struct {
	until time.Time
	by    map[string]corev1.ResourceList // by quota
}

var _ admission.ValidationInterface = (*resourceQuota)(nil)

func newResourceQuota(lookup *registry.Lookup) *resourceQuota {
	return &resourceQuota{lookup: lookup, pending: map[string]map[types.UID]pendingUse{}}
}

func (*resourceQuota) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *resourceQuota) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || deleting(a) || p.lookup.Store(a.GetResource().GroupResource()) == nil {
		return nil
	}
	resize := a.GetSubresource() == "resize" && a.GetOperation() == admission.Update
	if a.GetSubresource() != "" && !resize {
		return nil
	}
	quotas, err := registry.List[*corev1.ResourceQuotaList](ctx, p.lookup, quotasResource, a.GetNamespace(), everything)
	if err != nil {
		return err
	}
	if len(quotas.Items) == 0 {
		return nil
	}
	// One at a time, so that two requests do not both take the last of something.
	p.mu.Lock()
	defer p.mu.Unlock()
	wants := map[string]corev1.ResourceList{}
	for i := range quotas.Items {
		q := &quotas.Items[i]
		want, err := p.checkLocked(ctx, a, q)
		if err != nil {
			return err
		}
		if len(want) > 0 {
			wants[q.Name] = want
		}
	}
	if len(wants) > 0 && !a.IsDryRun() {
		p.reserveLocked(a, wants)
	}
	return nil
}

// checkLocked returns what the request adds to the quota's usage.
func (p *resourceQuota) checkLocked(ctx context.Context, a admission.Attributes, q *corev1.ResourceQuota) (corev1.ResourceList, error) {
	if !quota.Matches(q, a.GetObject()) {
		return nil, nil
	}
	if pod, ok := a.GetObject().(*corev1.Pod); ok && a.GetOperation() == admission.Create {
		if missing := quota.MustSpecify(q, pod); len(missing) > 0 {
			return nil, forbid(a, "failed quota: %s: must specify %s", q.Name, joined(missing))
		}
	}
	want := quota.Only(q, added(a))
	maps.DeleteFunc(want, func(_ corev1.ResourceName, v resource.Quantity) bool { return v.Sign() <= 0 })
	if len(want) == 0 {
		return nil, nil
	}
	used, seen, err := quota.Used(ctx, p.lookup, q)
	if err != nil {
		return nil, err
	}
	p.addPendingLocked(q, used, seen)
	var over []corev1.ResourceName
	for name, w := range want {
		total := used[name].DeepCopy()
		total.Add(w)
		if total.Cmp(q.Spec.Hard[name]) > 0 {
			over = append(over, name)
		}
	}
	if len(over) > 0 {
		slices.Sort(over)
		return nil, forbid(a, "exceeded quota: %s, requested: %s, used: %s, limited: %s",
			q.Name, list(over, want), list(over, used), list(over, q.Spec.Hard))
	}
	return want, nil
}

// added is what the request adds to what is used.
func added(a admission.Attributes) corev1.ResourceList {
	kind := a.GetResource().GroupResource()
	use := quota.Of(kind, a.GetObject())
	if a.GetOperation() == admission.Update && a.GetOldObject() != nil {
		use = quota.Subtract(use, quota.Of(kind, a.GetOldObject()))
	}
	return use
}

// addPendingLocked adds what the cache does not show yet.
func (p *resourceQuota) addPendingLocked(q *corev1.ResourceQuota, used corev1.ResourceList, seen map[types.UID]bool) {
	now := time.Now()
	for uid, use := range p.pending[q.Namespace] {
		if now.After(use.until) {
			delete(p.pending[q.Namespace], uid)
			continue
		}
		if !seen[uid] {
			quota.Add(used, quota.Only(q, use.by[q.Name]))
		}
	}
	if len(p.pending[q.Namespace]) == 0 {
		delete(p.pending, q.Namespace)
	}
}

func (p *resourceQuota) reserveLocked(a admission.Attributes, wants map[string]corev1.ResourceList) {
	m, err := meta.Accessor(a.GetObject())
	if err != nil || m.GetUID() == "" || a.GetOperation() != admission.Create {
		return
	}
	if p.pending[a.GetNamespace()] == nil {
		p.pending[a.GetNamespace()] = map[types.UID]pendingUse{}
	}
	p.pending[a.GetNamespace()][m.GetUID()] = pendingUse{until: time.Now().Add(pendingFor), by: wants}
}

func joined(list []corev1.ResourceName) string {
	out := make([]string, len(list))
	for i, n := range list {
		out[i] = string(n)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func list(names []corev1.ResourceName, from corev1.ResourceList) string {
	out := make([]string, len(names))
	for i, name := range names {
		q := from[name]
		out[i] = fmt.Sprintf("%s=%s", name, q.String())
	}
	return strings.Join(out, ",")
}
