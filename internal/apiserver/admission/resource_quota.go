package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/metadata"

	"wherry.dev/internal/api/quota"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/storage"
)

// beginTurn begins a decision that counts only if no other server decides something about the same meanwhile (storage.Turn).
type beginTurn func(ctx context.Context, about string) (*storage.Turn, error)

// resourceQuota enforces a namespace's quotas. Usage is what storage holds, plus what was admitted
// and is still on its way there. Of what is on its way from other servers, nothing is known: they take turns.
type resourceQuota struct {
	lookup   *registry.Lookup
	metadata func() (metadata.Interface, error) // of custom resources
	begin    beginTurn
	quotas   *registry.Kept[*corev1.ResourceQuota]

	mu    sync.Mutex
	books map[string]*book // by namespace; only those in use
}

// book holds what is on its way in one namespace. Only the holder of its lock decides, so that two
// requests do not both take the last of something.
type book struct {
	sync.Mutex
	coming map[*coming]struct{}
	users  int // guarded by resourceQuota.mu
}

var _ admission.ValidationInterface = (*resourceQuota)(nil)

func newResourceQuota(lookup *registry.Lookup, metadata func() (metadata.Interface, error), begin beginTurn) *resourceQuota {
	return &resourceQuota{
		lookup: lookup, metadata: metadata, begin: begin, quotas: registry.Keep[*corev1.ResourceQuota](lookup, quotasResource), books: map[string]*book{},
	}
}

func (*resourceQuota) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *resourceQuota) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || deleting(a) {
		return nil
	}
	resize := a.GetSubresource() == "resize" && a.GetOperation() == admission.Update
	if a.GetSubresource() != "" && !resize {
		return nil
	}
	quotas, err := p.quotas.List(ctx, a.GetNamespace())
	if err != nil || len(quotas) == 0 {
		return err
	}
	m, err := meta.Accessor(a.GetObject())
	if err != nil {
		return err
	}
	is := &coming{a.GetResource().GroupResource(), m.GetUID(), a.GetObject()}
	b := p.open(a.GetNamespace())
	defer p.close(a.GetNamespace(), b)
	turn := sync.OnceValues(func() (*storage.Turn, error) { return p.begin(ctx, "quota-"+a.GetNamespace()) })
	takes := false
	for _, q := range quotas {
		more, err := p.check(ctx, a, q, b.others(is), turn)
		if err != nil {
			return err
		}
		takes = takes || more
	}
	if !takes || a.IsDryRun() {
		storage.Mind(ctx, nil)
		return nil
	}
	began, err := turn()
	if err != nil {
		return err
	}
	storage.Mind(ctx, began)
	return p.enter(ctx, a.GetNamespace(), b, is)
}

// check reports whether the request takes something of the quota. It returns an error if it may
// not. It begins the turn before it counts.
func (p *resourceQuota) check(ctx context.Context, a admission.Attributes, q *corev1.ResourceQuota, onTheWay []coming,
	turn func() (*storage.Turn, error),
) (takes bool, err error) {
	now, kind := time.Now(), a.GetResource().GroupResource()
	var devices quota.Devices
	if slices.Contains(quota.Counted(q), kind) {
		own := append(slices.Clone(onTheWay), coming{kind, "", a.GetObject()})
		if devices, err = devicesFor(ctx, p.lookup, q, own); err != nil {
			return false, err
		}
	}
	use := quota.By(q, kind, a.GetObject(), now, devices)
	if use == nil {
		return false, nil
	}
	if pod, ok := a.GetObject().(*corev1.Pod); ok && a.GetOperation() == admission.Create {
		if missing := quota.MustSpecify(q, pod); missing != "" {
			return false, forbid(a, "failed quota: %s: must specify %s", q.Name, missing)
		}
	}
	if a.GetOperation() == admission.Update && a.GetOldObject() != nil {
		use = quota.More(use, quota.By(q, kind, a.GetOldObject(), now, devices))
	}
	more := quota.More(use, nil)
	if len(more) == 0 {
		return false, nil
	}
	if _, err := turn(); err != nil {
		return false, err
	}
	used, err := p.usedOf(ctx, q, a.GetResource(), onTheWay, devices, now)
	if err != nil {
		return false, err
	}
	var over []corev1.ResourceName
	for name, m := range more {
		total := used[name].DeepCopy()
		total.Add(m)
		if total.Cmp(q.Spec.Hard[name]) > 0 {
			over = append(over, name)
		}
	}
	if len(over) > 0 {
		slices.Sort(over)
		return false, forbid(a, "exceeded quota: %s, requested: %s, used: %s, limited: %s",
			q.Name, list(over, more), list(over, used), list(over, q.Spec.Hard))
	}
	return true, nil
}

// open returns the namespace's book, locked. The caller closes it once it has decided.
func (p *resourceQuota) open(namespace string) *book {
	p.mu.Lock()
	b := p.books[namespace]
	if b == nil {
		b = &book{coming: map[*coming]struct{}{}}
		p.books[namespace] = b
	}
	b.users++
	p.mu.Unlock()
	b.Lock()
	return b
}

func (p *resourceQuota) close(namespace string, b *book) {
	b.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(p.books, namespace)
	}
}

// enter counts the object as used until its write is over.
func (p *resourceQuota) enter(ctx context.Context, namespace string, b *book, is *coming) error {
	err := registry.Hold(ctx, func() {
		b.Lock()
		delete(b.coming, is)
		p.close(namespace, b)
	})
	if err != nil {
		return err
	}
	b.coming[is] = struct{}{}
	p.mu.Lock()
	b.users++
	p.mu.Unlock()
	return nil
}

// others lists what is on its way, except the object itself: two updates of one object exclude each
// other in storage, by its version.
func (b *book) others(than *coming) []coming {
	var out []coming
	for c := range b.coming {
		if c.uid != than.uid {
			out = append(out, *c)
		}
	}
	return out
}

func list(names []corev1.ResourceName, from corev1.ResourceList) string {
	out := make([]string, len(names))
	for i, name := range names {
		q := from[name]
		out[i] = fmt.Sprintf("%s=%s", name, q.String())
	}
	return strings.Join(out, ",")
}
