package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
)

// admitTimeout is how long a pod's start may wait for its rules.
const admitTimeout = 10 * time.Second

// Identity names a pod as the runtime knows it: for a static pod, whose UID is not its mirror's, it is
// the mirror that has it as an annotation.
type Identity struct {
	Namespace, Name string
	UID             types.UID
}

func identityOf(pod *v1.Pod) Identity {
	id := Identity{pod.Namespace, pod.Name, pod.UID}
	if of, ok := pod.Annotations[pods.AnnotationConfigMirror]; ok {
		id.UID = types.UID(of)
	}
	return id
}

// sandbox is one that has addresses.
type sandbox struct {
	Identity
	addresses []netip.Addr
}

// Admit tells the enforcer the addresses of a new sandbox, which the pod's status does not have yet, and
// returns when the kernel has the rules for them: before that nothing of the pod may run. It waits only
// for pods that a policy selects. An error says that the pod must not start.
func (e *Enforcer) Admit(ctx context.Context, id string, who Identity, addresses []netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	e.mu.Lock()
	e.sandboxes[id] = sandbox{who, addresses}
	e.mu.Unlock()
	if len(e.policies.ListKeys()) == 0 {
		return nil
	}
	e.changed()
	for {
		e.mu.Lock()
		owned, written := e.owners, e.written
		e.mu.Unlock()
		waitsFor := e.missing(who, addresses, owned)
		if waitsFor == "" {
			return nil
		}
		select {
		case <-written:
		case <-ctx.Done():
			return fmt.Errorf("network policies select pod %s/%s, which cannot start before the kernel has their rules; still waiting for %s: %w",
				who.Namespace, who.Name, waitsFor, context.Cause(ctx))
		}
	}
}

// missing says what a pod has to wait for; nothing, if no policy selects it.
func (e *Enforcer) missing(who Identity, addresses []netip.Addr, owned map[netip.Addr]Identity) string {
	var inNamespace []*networkingv1.NetworkPolicy
	for _, np := range list[networkingv1.NetworkPolicy](e.policies) {
		if np.Namespace == who.Namespace {
			inNamespace = append(inNamespace, np)
		}
	}
	if len(inNamespace) == 0 {
		return ""
	}
	item, exists, err := e.pods.GetByKey(who.Namespace + "/" + who.Name)
	if err != nil || !exists || identityOf(item.(*v1.Pod)) != who {
		return "news of the pod from the API server"
	}
	pod := item.(*v1.Pod)
	selects := func(r *rules) bool { return r.selector.Matches(labelsOf(pod)) }
	if !slices.ContainsFunc(byNamespace(inNamespace)[who.Namespace], selects) {
		return ""
	}
	if slices.ContainsFunc(addresses, func(a netip.Addr) bool { return owned[a] != who }) {
		return "the kernel"
	}
	return ""
}

// Forget takes a sandbox's addresses back: it has left the network.
func (e *Enforcer) Forget(id string) {
	e.mu.Lock()
	_, known := e.sandboxes[id]
	delete(e.sandboxes, id)
	e.mu.Unlock()
	if known && len(e.policies.ListKeys()) > 0 {
		e.changed()
	}
}

// known returns the addresses of sandboxes, by pod.
func (e *Enforcer) known() map[Identity][]netip.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[Identity][]netip.Addr{}
	for _, s := range e.sandboxes {
		out[s.Identity] = append(out[s.Identity], s.addresses...)
	}
	return out
}

// announceWritten tells those that wait what the kernel has now.
func (e *Enforcer) announceWritten(owners map[netip.Addr]Identity) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.owners = owners
	close(e.written)
	e.written = make(chan struct{})
}
