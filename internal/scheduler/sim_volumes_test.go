package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
	"wherry.dev/internal/scheduler/plugins/volumes"
)

// startStorage gives some lives volumes, and somebody who binds and makes them.
func (l *life) startStorage() (stop func()) {
	if l.r.IntN(2) == 0 {
		return func() {}
	}
	l.storage = true
	b := binder{client: l.client, fails: func(string) bool { return l.fails() }}
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.run(ctx, time.Second, func(error) {}) // it tries again, as its model does
	}()
	return func() {
		cancel()
		<-done
	}
}

func (l *life) newVolume() *v1.PersistentVolume {
	key, value := v1.LabelTopologyZone, pick(l, "a", "b")
	if nodes := l.nodes(); l.r.IntN(2) == 0 && len(nodes) > 0 {
		key, value = v1.LabelHostname, pick(l, nodes...).Name
	}
	v := localVolume(l.name("v"), pick(l, "1Gi", "2Gi", "3Gi"), key, value)
	l.note("volume %s: %s, %s=%s", v.Name, v.Spec.Capacity.Storage(), key, value)
	return v
}

func (l *life) newClaim(name string) *v1.PersistentVolumeClaim {
	c := claim(name, pick(l, existing, existing, made), pick(l, "1Gi", "2Gi"))
	if l.r.IntN(3) == 0 {
		c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	}
	l.note("claim %s: %s of class %s, %v", c.Name, c.Spec.Resources.Requests.Storage(), *c.Spec.StorageClassName,
		c.Spec.AccessModes)
	return c
}

// useClaims has a new pod use claims: old ones, new ones, or one that comes later.
func (l *life) useClaims(p *v1.Pod) {
	if !l.storage || l.r.IntN(2) == 0 {
		return
	}
	for range 1 + l.r.IntN(2) {
		name := ""
		if old := l.claims(); l.r.IntN(3) == 0 && len(old) > 0 {
			name = pick(l, old...).Name
		} else {
			c := l.newClaim(l.name("c"))
			name = c.Name
			if l.r.IntN(5) == 0 {
				l.note("claim %s comes later", name)
				l.late = append(l.late, c)
			} else {
				l.createClaim(c)
			}
		}
		if !slices.Contains(claimsOf(p), name) {
			using(name)(p)
		}
	}
}

func (l *life) createClaim(c *v1.PersistentVolumeClaim) {
	if _, err := l.client.CoreV1().PersistentVolumeClaims("default").Create(l.t.Context(), c,
		metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func claimsOf(p *v1.Pod) []string {
	var out []string
	for _, v := range p.Spec.Volumes {
		out = append(out, v.PersistentVolumeClaim.ClaimName)
	}
	return out
}

// storageStep makes one thing happen to volumes.
func (l *life) storageStep() {
	fail := func(err error) {
		if err != nil {
			l.t.Fatal(err)
		}
	}
	api := l.client.CoreV1()
	switch k := l.r.IntN(6); {
	case !l.storage:
	case k < 3:
		_, err := api.PersistentVolumes().Create(l.t.Context(), l.newVolume(), metav1.CreateOptions{})
		fail(err)
	case k == 3 && len(l.late) > 0:
		l.note("claim %s is there now", l.late[0].Name)
		l.createClaim(l.late[0])
		l.late = l.late[1:]
	case k == 4:
		for _, v := range l.volumes() {
			if v.Spec.ClaimRef == nil {
				l.note("delete volume %s", v.Name)
				fail(api.PersistentVolumes().Delete(l.t.Context(), v.Name, metav1.DeleteOptions{}))
				return
			}
		}
	case k == 5:
		used := map[string]bool{}
		for _, p := range l.pods() {
			for _, c := range claimsOf(p) {
				used[c] = true
			}
		}
		for _, c := range l.claims() {
			if !used[c.Name] {
				l.note("delete claim %s", c.Name)
				fail(api.PersistentVolumeClaims("default").Delete(l.t.Context(), c.Name, metav1.DeleteOptions{}))
				return
			}
		}
	}
}

func (l *life) claims() []*v1.PersistentVolumeClaim {
	list, err := l.client.CoreV1().PersistentVolumeClaims("").List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	var out []*v1.PersistentVolumeClaim
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

func (l *life) volumes() []*v1.PersistentVolume {
	list, err := l.client.CoreV1().PersistentVolumes().List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	var out []*v1.PersistentVolume
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

// addStorage adds claims and volumes to the world, and returns what is wrong with them.
func (l *life) addStorage(w *world) string {
	w.claims, w.volumes = map[string]*v1.PersistentVolumeClaim{}, map[string]*v1.PersistentVolume{}
	for _, v := range l.volumes() {
		w.volumes[v.Name] = v
	}
	owner := map[string]string{}
	for _, c := range l.claims() {
		w.claims[c.Name] = c
		name := c.Spec.VolumeName
		if name == "" {
			continue
		}
		if other, ok := owner[name]; ok {
			return fmt.Sprintf("volume %s was given to claims %s and %s", name, other, c.Name)
		}
		owner[name] = c.Name
		if v := w.volumes[name]; v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID {
			return fmt.Sprintf("claim %s has volume %s, which is not its", c.Name, name)
		}
	}
	return w.misplaced()
}

// misplaced returns which pod was bound before its claims, or where it does not reach its volumes. Zones change,
// hosts do not.
func (w world) misplaced() string {
	users := map[string]string{}
	for _, p := range w.pods {
		for _, name := range claimsOf(p) {
			c := w.claims[name]
			if c == nil || c.Spec.VolumeName == "" {
				return fmt.Sprintf("pod %s was bound without its claim %s", p.Name, name)
			}
			r := affinity(w.volumes[c.Spec.VolumeName])
			if r.Key == v1.LabelHostname && r.Values[0] != p.Spec.NodeName {
				return fmt.Sprintf("pod %s is on node %s, and its volume on %s", p.Name, p.Spec.NodeName, r.Values[0])
			}
			if other, ok := users[name]; ok && slices.Contains(c.Spec.AccessModes, v1.ReadWriteOncePod) {
				return fmt.Sprintf("pods %s and %s both use claim %s", p.Name, other, name)
			}
			users[name] = p.Name
		}
	}
	return ""
}

func affinity(v *v1.PersistentVolume) v1.NodeSelectorRequirement {
	return v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
}

func reaches(n *v1.Node, v *v1.PersistentVolume) bool {
	r := affinity(v)
	value, ok := n.Labels[r.Key]
	return ok && value == r.Values[0]
}

// noVolumes returns why the pod's claims would not get their volumes on the node.
func (w world) noVolumes(p *v1.Pod, n *v1.Node) string {
	var open []*v1.PersistentVolumeClaim
	for _, name := range claimsOf(p) {
		c := w.claims[name]
		if c == nil {
			return "no claim"
		}
		switch v := w.ownVolume(c); {
		case v != nil && !reaches(n, v):
			return "volume of another node"
		case v != nil:
		case *c.Spec.StorageClassName == existing:
			open = append(open, c)
		case c.Annotations[volume.AnnSelectedNode] != "" && c.Annotations[volume.AnnSelectedNode] != n.Name:
			return "volume is made for another node"
		}
	}
	if !w.match(open, n, nil) {
		return "no volume"
	}
	return ""
}

// ownVolume returns the volume that is kept for the claim, or is its.
func (w world) ownVolume(c *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	for _, v := range w.volumes {
		if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID {
			return v
		}
	}
	return nil
}

// match tries every way to give free volumes to claims.
func (w world) match(open []*v1.PersistentVolumeClaim, n *v1.Node, taken []string) bool {
	if len(open) == 0 {
		return true
	}
	c := open[0]
	for _, v := range w.volumes {
		free := v.Spec.ClaimRef == nil && v.Status.Phase == v1.VolumeAvailable && !slices.Contains(taken, v.Name)
		right := v.Spec.StorageClassName == existing && slices.Contains(v.Spec.AccessModes, c.Spec.AccessModes[0]) &&
			v.Spec.Capacity.Storage().Cmp(*c.Spec.Resources.Requests.Storage()) >= 0
		if free && right && reaches(n, v) && w.match(open[1:], n, append(taken, v.Name)) {
			return true
		}
	}
	return false
}

// inUse reports whether another pod has a claim that only one pod may use.
func (w world) inUse(p *v1.Pod) bool {
	return slices.ContainsFunc(w.pods, func(o *v1.Pod) bool {
		return slices.ContainsFunc(claimsOf(o), func(name string) bool {
			c := w.claims[name]
			return c != nil && slices.Contains(c.Spec.AccessModes, v1.ReadWriteOncePod) && slices.Contains(claimsOf(p), name)
		})
	})
}

// deafBinding hears of no event.
type deafBinding struct{ *volumes.Binding }

func (deafBinding) Name() string { return "Mutant" }
func (deafBinding) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

// hastyBinding does not wait for claims to be bound.
type hastyBinding struct{ *volumes.Binding }

func (hastyBinding) Name() string { return "Mutant" }

func (hastyBinding) PreBindPreFlight(context.Context, fwk.CycleState, *v1.Pod, string) (*fwk.PreBindPreFlightResult,
	*fwk.Status) {
	return nil, fwk.NewStatus(fwk.Skip)
}

// TestFaultsOfVolumeBindingAreCaught is TestFaultsOfPluginsAreCaught for what a mutant of a filter alone cannot do
// wrong.
func TestFaultsOfVolumeBindingAreCaught(t *testing.T) {
	for name, mutate := range map[string]func(*volumes.Binding) fwk.Plugin{
		"deaf":  func(b *volumes.Binding) fwk.Plugin { return deafBinding{b} },
		"hasty": func(b *volumes.Binding) fwk.Plugin { return hastyBinding{b} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := scheduler.DefaultConfig()
			cfg.Registry = framework.Registry{"Mutant": func(ctx context.Context, args runtime.Object,
				h fwk.Handle) (fwk.Plugin, error) {
				pl, err := plugins.Registry()["VolumeBinding"](ctx, args, h)
				if err != nil {
					return nil, err
				}
				b, ok := pl.(*volumes.Binding)
				if !ok {
					return nil, fmt.Errorf("got a %T", pl)
				}
				return mutate(b), nil
			}}
			cfg.Profiles[0].Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{
				Disabled: []configv1.Plugin{{Name: "VolumeBinding"}}, Enabled: []configv1.Plugin{{Name: "Mutant"}},
			}}
			for seed := uint64(1); seed < 200; seed++ {
				if wrong, log := live(t, seed, cfg); wrong != "" {
					t.Logf("noticed: %s\n%s", wrong, strings.Join(log[max(0, len(log)-3):], "\n"))
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}
