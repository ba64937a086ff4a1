package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
)

// life is a small cluster to which random things happen in virtual time, while a scheduler works on
// it. Whenever it comes to rest, every pod is where it may be, and no pod waits that would fit
// somewhere: judged by rules of this test's own, which look at everything (fits).
type life struct {
	*cluster
	r      *rand.Rand
	cfg    scheduler.Config
	log    []string
	number int // of the next object
	// failing is the share of bindings, and of writes to volumes, that fail, in per cent.
	failing     atomic.Int32
	grouped     bool // it has pod groups
	squads      []*squad
	storage     bool                        // it has volumes
	late        []*v1.PersistentVolumeClaim // claims that some pod waits for
	driven      bool                        // it has devices
	lateDevices []*resourcev1.ResourceClaim // claims for devices that some pod waits for
	offered     map[string]bool             // the nodes that have, or had, a device plugin for extendedGPU
}

func (l *life) fails() bool { return rand.Int32N(100) < l.failing.Load() } //nolint:gosec // any will do

// lives is how many clusters a run has (LIVES), and first is the seed of the first one (SEED).
func lives(t *testing.T, byDefault int) (first, count uint64) {
	t.Helper()
	read := func(name string, value uint64) uint64 {
		if s := os.Getenv(name); s != "" {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		return value
	}
	first, count = read("SEED", 1), read("LIVES", uint64(byDefault))
	if os.Getenv("SEED") != "" && os.Getenv("LIVES") == "" {
		count = 1
	}
	return first, count
}

// TestLivesOfClusters is `make sim-scheduler LIVES=…`; SEED=… repeats one life.
func TestLivesOfClusters(t *testing.T) {
	first, count := lives(t, 15)
	for seed := first; seed < first+count; seed++ {
		if wrong, log := live(t, seed, scheduler.DefaultConfig()); wrong != "" {
			t.Fatalf("life %d: %s\n%s", seed, wrong, strings.Join(log, "\n"))
		}
	}
}

// live plays one life, and returns what was wrong in it.
func live(t *testing.T, seed uint64, cfg scheduler.Config) (wrong string, log []string) {
	t.Helper()
	if seed%2 == 1 {
		cfg.MemoNodes = 1 // as on many nodes
	}
	cfg.PodGroups = seed%3 == 0
	cfg.Topology = seed%6 == 0
	synctest.Test(t, func(t *testing.T) {
		l := &life{cluster: &cluster{t: t}, r: rand.New(rand.NewPCG(seed, 1)), cfg: cfg, grouped: cfg.PodGroups} //nolint:gosec // it is to repeat
		objs := classes()
		for range 1 + l.r.IntN(4) {
			objs = append(objs, l.newNode())
		}
		l.client = fake.NewClientset(objs...)
		bindPods(l.client)
		l.client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "binding" || !l.fails() {
				return false, nil, nil
			}
			return true, nil, errors.New("the API server is busy")
		})
		versioned(l.client, l.refuses)
		defer l.startStorage()()
		defer l.startDrivers(seed)()
		l.cluster = startClient(t, l.cfg, l.client, l.client)
		defer func() { l.stop() }()
		for range 25 {
			l.step()
			if l.r.IntN(3) > 0 {
				continue
			}
			l.settle()
			if wrong = l.check(); wrong != "" {
				for _, p := range l.pods() {
					l.note("now: pod %s on %q (nominated %q) since %v: %s", p.Name, p.Spec.NodeName, p.Status.NominatedNodeName, p.Labels, told(p))
				}
				break
			}
		}
		log = l.log
	})
	return wrong, log
}

func (l *life) note(format string, args ...any) { l.log = append(l.log, fmt.Sprintf(format, args...)) }

func (l *life) name(prefix string) string {
	l.number++
	return fmt.Sprintf("%s%d", prefix, l.number)
}

func pick[T any](l *life, from ...T) T { return from[l.r.IntN(len(from))] }

func (l *life) newNode() *v1.Node {
	n := node(l.name("n"), pick(l, "1", "2", "4"), in(pick(l, "a", "b")))
	l.changeNode(n)
	l.note("node %s: %s CPU, labels %v, taints %v", n.Name, n.Status.Allocatable.Cpu(), n.Labels, n.Spec.Taints)
	return n
}

func (l *life) changeNode(n *v1.Node) {
	if l.driven && l.r.IntN(4) == 0 {
		l.changeOffer(n)
		return
	}
	switch l.r.IntN(6) {
	case 0:
		n.Spec.Taints = []v1.Taint{{Key: "k", Effect: pick(l, v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule)}}
	case 1:
		n.Spec.Taints = nil
	case 2:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	case 3:
		n.Labels = maps.Clone(n.Labels)
		n.Labels[v1.LabelTopologyZone] = pick(l, "a", "b", "c")
	case 4:
		n.Labels = maps.Clone(n.Labels)
		delete(n.Labels, v1.LabelTopologyZone)
	case 5:
		n.Status.Allocatable = n.Status.Allocatable.DeepCopy()
		n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse(pick(l, "1", "2", "4"))
	}
}

func (l *life) newPod() *v1.Pod {
	key := func() string { return pick(l, v1.LabelHostname, v1.LabelTopologyZone) }
	p := pod(l.name("p"), pick(l, "100m", "500m", "1", "2"), priority(int32(l.r.IntN(3))), labelled("app", pick(l, "x", "y")))
	switch l.r.IntN(8) {
	case 0:
		port(80)(p)
	case 1:
		p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: pick(l, "a", "b")}
	case 2:
		p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	case 3:
		together(key())(p)
	case 4:
		apart(key())(p)
	case 5:
		spread(v1.TopologySpreadConstraint{MaxSkew: pick(l, int32(1), 2), TopologyKey: key(), WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: app("x")})(p)
	}
	l.useClaims(p)
	l.useDevices(p)
	return p
}

// step makes one thing happen.
func (l *life) step() {
	l.groupStep()
	pods, nodes := l.pods(), l.nodes()
	fail := func(err error) {
		if err != nil {
			l.t.Fatal(err)
		}
	}
	api := l.client.CoreV1()
	l.storageStep()
	l.deviceStep()
	switch k := l.r.IntN(20); {
	case k < 9 || len(pods) == 0:
		p := l.newPod()
		l.note("pod %s: %v CPU, priority %d, labels %v, %s", p.Name, p.Spec.Containers[0].Resources.Requests.Cpu(), *p.Spec.Priority, p.Labels, wants(p))
		l.create(p)
	case k < 12:
		p := pick(l, pods...)
		l.note("delete pod %s", p.Name)
		fail(api.Pods(p.Namespace).Delete(l.t.Context(), p.Name, metav1.DeleteOptions{}))
	case k == 12:
		p := pick(l, pods...).DeepCopy()
		if p.Spec.NodeName == "" {
			return
		}
		l.note("pod %s is done", p.Name)
		p.Status.Phase = v1.PodSucceeded
		_, err := api.Pods(p.Namespace).UpdateStatus(l.t.Context(), p, metav1.UpdateOptions{})
		fail(err)
	case k == 13:
		synctest.Wait() // the fake API takes an old copy, and with it would take the pod from its node
		p, err := api.Pods("default").Get(l.t.Context(), pick(l, pods...).Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		fail(err)
		p = p.DeepCopy()
		p.Labels = map[string]string{"app": pick(l, "x", "y", "z")}
		l.note("pod %s has labels %v", p.Name, p.Labels)
		_, err = api.Pods(p.Namespace).Update(l.t.Context(), p, metav1.UpdateOptions{})
		fail(err)
	case k == 14:
		n := l.newNode()
		_, err := api.Nodes().Create(l.t.Context(), n, metav1.CreateOptions{})
		fail(err)
	case k < 17 && len(nodes) > 0:
		n := pick(l, nodes...).DeepCopy()
		l.changeNode(n)
		l.note("node %s has %s CPU, %d of %s, labels %v, taints %v, unschedulable %t", n.Name, n.Status.Allocatable.Cpu(), offer(n), extendedGPU, n.Labels, n.Spec.Taints, n.Spec.Unschedulable)
		_, err := api.Nodes().Update(l.t.Context(), n, metav1.UpdateOptions{})
		fail(err)
	case k == 17 && len(nodes) > 1:
		n := pick(l, nodes...)
		l.note("delete node %s and its pods", n.Name)
		fail(api.Nodes().Delete(l.t.Context(), n.Name, metav1.DeleteOptions{}))
		for _, p := range pods {
			if p.Spec.NodeName == n.Name {
				fail(api.Pods(p.Namespace).Delete(l.t.Context(), p.Name, metav1.DeleteOptions{}))
			}
		}
	case k == 18:
		if !l.grouped { // a gang may lose its place when a binding fails
			l.failing.Store(pick(l, int32(0), 0, 30))
		}
		l.note("%d %% of bindings fail", l.failing.Load())
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: l.name("b"), Namespace: "default"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: app(pick(l, "x", "y"))},
		}
		_, err := l.client.PolicyV1().PodDisruptionBudgets("default").Create(l.t.Context(), budget, metav1.CreateOptions{})
		fail(err)
	case k == 19:
		l.note("the scheduler is restarted")
		l.stop()
		for _, s := range l.squads {
			s.torn = true
		}
		l.cluster = startClient(l.t, l.cfg, l.client, l.client)
	}
	time.Sleep(time.Duration(l.r.IntN(1500)) * time.Millisecond)
}

func wants(p *v1.Pod) string {
	var out []string
	if p.Spec.Containers[0].Ports != nil {
		out = append(out, "port 80")
	}
	if p.Spec.NodeSelector != nil {
		out = append(out, fmt.Sprint(p.Spec.NodeSelector))
	}
	if p.Spec.Tolerations != nil {
		out = append(out, "tolerates all")
	}
	for _, t := range required(p, true) {
		out = append(out, "together with x in "+t.TopologyKey)
	}
	for _, t := range required(p, false) {
		out = append(out, "apart from x in "+t.TopologyKey)
	}
	for _, c := range claimsOf(p) {
		out = append(out, "claim "+c)
	}
	for _, c := range devicesOf(p) {
		out = append(out, "devices of claim "+c)
	}
	if name, amount := extendedOf(p); amount > 0 {
		out = append(out, fmt.Sprintf("%d of %s", amount, name))
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		out = append(out, fmt.Sprintf("spread x over %s by %d", c.TopologyKey, c.MaxSkew))
	}
	return strings.Join(out, ", ")
}

// settle lets all back-offs and failed bindings end.
func (l *life) settle() {
	failing := l.failing.Swap(0)
	synctest.Wait()
	time.Sleep(30 * time.Second)
	synctest.Wait()
	l.failing.Store(failing)
}

func (l *life) pods() []*v1.Pod {
	list, err := l.client.CoreV1().Pods("").List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	var out []*v1.Pod
	for i := range list.Items {
		if list.Items[i].Status.Phase != v1.PodSucceeded {
			out = append(out, &list.Items[i])
		}
	}
	return out
}

func (l *life) nodes() []*v1.Node {
	list, err := l.client.CoreV1().Nodes().List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	var out []*v1.Node
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

// check returns what is wrong with a cluster at rest.
func (l *life) check() string {
	pods, nodes := l.pods(), l.nodes()
	w := world{nodes: map[string]*v1.Node{}}
	for _, n := range nodes {
		w.nodes[n.Name] = n
	}
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			w.pods = append(w.pods, p)
		}
	}
	if why := l.addStorage(&w); why != "" {
		return why
	}
	if why := l.addDevices(&w); why != "" {
		return why
	}
	for _, n := range nodes {
		if why := w.overfull(n); why != "" {
			return fmt.Sprintf("node %s: %s", n.Name, why)
		}
	}
	if why := l.checkGroups(w, pods); why != "" {
		return why
	}
	for _, p := range pods {
		if p.Spec.NodeName != "" || squadOf(p) != "" && l.grouped {
			continue
		}
		for _, n := range nodes {
			if why := w.fits(p, n); why == "" {
				return fmt.Sprintf("pod %s waits, and would fit on node %s; it was told %q", p.Name, n.Name, told(p))
			}
			without := w
			without.pods = nil
			for _, o := range w.pods {
				if o.Spec.NodeName != n.Name || *o.Spec.Priority >= *p.Spec.Priority {
					without.pods = append(without.pods, o)
				}
			}
			// Preemption is not tried where something speaks against the node that no victim's end changes.
			if len(without.pods) < len(w.pods) && without.fits(p, n) == "" && w.never(p, n) == "" {
				return fmt.Sprintf("pod %s waits, and would fit on node %s without pods of a lower priority; it was told %q", p.Name, n.Name, told(p))
			}
		}
	}
	return ""
}

func told(p *v1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled {
			return c.Message
		}
	}
	return ""
}

// world is a cluster as the test judges it. All pods have a node.
type world struct {
	nodes        map[string]*v1.Node
	pods         []*v1.Pod
	claims       map[string]*v1.PersistentVolumeClaim
	volumes      map[string]*v1.PersistentVolume
	devices      map[string]int // how many a node has
	deviceClaims map[string]*resourcev1.ResourceClaim
	meant        map[v1.ResourceName]bool // the extended resources that stand for devices
}

func requested(p *v1.Pod) int64 {
	return p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
}

// overfull returns what a node cannot have admitted. A node may shrink under its pods, so only pods
// that are there since are judged: none is, which is why the sums are compared with the largest size.
func (w world) overfull(n *v1.Node) string {
	var cpu, count int64
	ports := 0
	for _, p := range w.pods {
		if p.Spec.NodeName == n.Name {
			cpu += requested(p)
			count++
			ports += len(p.Spec.Containers[0].Ports)
		}
	}
	switch {
	case cpu > 4000:
		return fmt.Sprintf("%d m of CPU on a node that never had more than 4", cpu)
	case count > n.Status.Allocatable.Pods().Value():
		return fmt.Sprintf("%d pods", count)
	case ports > 1:
		return "a port is taken twice"
	}
	return ""
}

// fits returns why the pod cannot run on the node.
func (w world) fits(p *v1.Pod, n *v1.Node) string {
	if why := w.never(p, n); why != "" {
		return why
	}
	var cpu, count int64 = requested(p), 1
	for _, o := range w.pods {
		if o.Spec.NodeName != n.Name {
			continue
		}
		cpu += requested(o)
		count++
		if len(o.Spec.Containers[0].Ports)+len(p.Spec.Containers[0].Ports) == 2 {
			return "port"
		}
	}
	if cpu > n.Status.Allocatable.Cpu().MilliValue() || count > n.Status.Allocatable.Pods().Value() || w.pluginIsBusy(p, n) {
		return "resources"
	}
	for _, o := range w.pods {
		for _, t := range required(p, false) {
			if selects(t.LabelSelector, o) && w.sameDomain(t.TopologyKey, n, o) {
				return "anti-affinity"
			}
		}
		for _, t := range required(o, false) {
			if selects(t.LabelSelector, p) && w.sameDomain(t.TopologyKey, n, o) {
				return "anti-affinity of " + o.Name
			}
		}
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		if why := w.skewed(p, n, c); why != "" {
			return why
		}
	}
	if w.inUse(p) {
		return "claim in use"
	}
	return ""
}

// never returns what the end of other pods does not change.
func (w world) never(p *v1.Pod, n *v1.Node) string {
	tolerates := len(p.Spec.Tolerations) > 0
	switch {
	case n.Spec.Unschedulable && !tolerates:
		return "unschedulable"
	case !tolerates && slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Effect != v1.TaintEffectPreferNoSchedule }):
		return "taint"
	case !labels.SelectorFromSet(p.Spec.NodeSelector).Matches(labels.Set(n.Labels)):
		return "selector"
	case requested(p) > n.Status.Allocatable.Cpu().MilliValue():
		return "size"
	}
	if why := w.noVolumes(p, n); why != "" {
		return why
	}
	if why := w.noDevices(p, n); why != "" {
		return why
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		if _, ok := n.Labels[c.TopologyKey]; !ok {
			return "no such key"
		}
	}
	for _, t := range required(p, true) {
		if _, ok := n.Labels[t.TopologyKey]; !ok {
			return "no such key"
		}
		there := func(o *v1.Pod) bool { return selects(t.LabelSelector, o) && w.sameDomain(t.TopologyKey, n, o) }
		// Friends count where they have a domain at all.
		anywhere := func(o *v1.Pod) bool {
			on := w.nodes[o.Spec.NodeName]
			if on == nil || !selects(t.LabelSelector, o) {
				return false
			}
			_, ok := on.Labels[t.TopologyKey]
			return ok
		}
		if !slices.ContainsFunc(w.pods, there) && (slices.ContainsFunc(w.pods, anywhere) || !selects(t.LabelSelector, p)) {
			return "affinity"
		}
	}
	return ""
}

func required(p *v1.Pod, affinity bool) []v1.PodAffinityTerm {
	switch a := p.Spec.Affinity; {
	case a == nil:
		return nil
	case affinity && a.PodAffinity != nil:
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	case !affinity && a.PodAntiAffinity != nil:
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func selects(s *metav1.LabelSelector, p *v1.Pod) bool {
	return labels.SelectorFromSet(s.MatchLabels).Matches(labels.Set(p.Labels))
}

func (w world) sameDomain(key string, n *v1.Node, o *v1.Pod) bool {
	on := w.nodes[o.Spec.NodeName]
	if on == nil {
		return false
	}
	a, ok := n.Labels[key]
	b, okb := on.Labels[key]
	return ok && okb && a == b
}

func (w world) skewed(p *v1.Pod, n *v1.Node, c v1.TopologySpreadConstraint) string {
	count := map[string]int{}
	for _, m := range w.nodes {
		v, ok := m.Labels[c.TopologyKey]
		if !ok || !labels.SelectorFromSet(p.Spec.NodeSelector).Matches(labels.Set(m.Labels)) {
			continue
		}
		count[v] += 0
		for _, o := range w.pods {
			if o.Spec.NodeName == m.Name && selects(c.LabelSelector, o) {
				count[v]++
			}
		}
	}
	fewest := slices.Min(slices.Collect(maps.Values(count)))
	here := count[n.Labels[c.TopologyKey]]
	if selects(c.LabelSelector, p) {
		here++
	}
	if here-fewest > int(c.MaxSkew) {
		return "spread"
	}
	return ""
}

// The mutants below stand in for faults of plugins.

// blind lets every pod through a filter.
type blind struct{ fwk.FilterPlugin }

func (blind) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status { return nil }

// Name is the one that it has in the profile.
func (blind) Name() string { return "Mutant" }

// deaf hears of no event.
type deaf struct{ fwk.FilterPlugin }

// Name is the one that it has in the profile.
func (deaf) Name() string { return "Mutant" }

func (d deaf) PreFilter(ctx context.Context, s fwk.CycleState, p *v1.Pod, n []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if pre, ok := d.FilterPlugin.(fwk.PreFilterPlugin); ok {
		return pre.PreFilter(ctx, s, p, n)
	}
	return nil, nil
}

func (d deaf) PreFilterExtensions() fwk.PreFilterExtensions {
	if pre, ok := d.FilterPlugin.(fwk.PreFilterPlugin); ok {
		return pre.PreFilterExtensions()
	}
	return nil
}

func (deaf) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// TestFaultsOfPluginsAreCaught: the check is worth something only if it sees what it looks for.
func TestFaultsOfPluginsAreCaught(t *testing.T) {
	names := []string{"NodeResourcesFit", "InterPodAffinity"}
	if os.Getenv("LIVES") != "" { // the others take more lives to be noticed
		names = append(names, "NodePorts", "PodTopologySpread", "TaintToleration", "NodeUnschedulable")
	}
	for _, name := range names {
		for kind, mutate := range map[string]func(fwk.FilterPlugin) fwk.Plugin{
			"blind": func(f fwk.FilterPlugin) fwk.Plugin { return blind{f} },
			"deaf":  func(f fwk.FilterPlugin) fwk.Plugin { return deaf{f} },
		} {
			if kind != "deaf" && name != "NodeResourcesFit" && name != "NodePorts" {
				continue // what these let through is not wrong afterwards: nodes and labels change under pods
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				cfg := scheduler.DefaultConfig()
				cfg.Registry = framework.Registry{"Mutant": func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
					pl, err := plugins.Registry()[name](ctx, args, h)
					if err != nil {
						return nil, err
					}
					f, ok := pl.(fwk.FilterPlugin)
					if !ok {
						return nil, fmt.Errorf("%s does not filter", name)
					}
					return mutate(f), nil
				}}
				cfg.Profiles[0].Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{
					Disabled: []configv1.Plugin{{Name: name}}, Enabled: []configv1.Plugin{{Name: "Mutant"}},
				}}
				for seed := uint64(1); seed < 200; seed++ {
					if wrong, _ := live(t, seed, cfg); wrong != "" {
						return
					}
				}
				t.Error("nobody noticed")
			})
		}
	}
}
