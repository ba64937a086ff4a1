package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/identity"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/podops"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/prober"
	"wherry.dev/internal/kubelet/staticpod"
	"wherry.dev/internal/kubelet/status"
	"wherry.dev/internal/kubelet/userns"
	"wherry.dev/internal/kubelet/volume"
	"wherry.dev/test/fakecri"
)

// writer sends statuses to the API server: a status.Manager, or a statusWriter.
type writer interface {
	podworker.StatusSink
	podops.Flusher
	Run(ctx context.Context) error
}

// services are those of the cluster.
var services = []*v1.Service{
	{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}, Spec: v1.ServiceSpec{ClusterIP: serviceIP, Ports: []v1.ServicePort{{Port: 5432}}}},
}

// hostIP is the node's address.
const hostIP = "192.0.2.1"

// node is one life of the kubelet: its memory ends with it.
type node struct {
	life    *life
	number  int
	key     string // of everything that is drawn for it
	table   *podworker.Table
	gate    gate
	ran     map[types.UID]bool // the pods that the runtime had when it started
	settled atomic.Bool        // the pods that it was started with are decided
	status  writer
	prober  *prober.Manager
	static  *staticpod.Pods
	objects *objectcache.Cache
	listed  atomic.Bool     // the API server's pods are known
	follow  atomic.Bool     // the sources are followed: not before orphans have workers
	ctx     context.Context // of the process, for calls that end with it
	cancel  context.CancelFunc
	wire    string        // the status that was put last; there is one worker at a time
	dead    chan struct{} // closed when it is killed
	once    sync.Once
	done    chan struct{}
}

// startNode starts a kubelet on what the previous one left.
func startNode(l *life, number int) (*node, error) {
	n := &node{life: l, number: number, key: strconv.Itoa(number) + " ", dead: make(chan struct{}), done: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(klog.NewContext(l.t.Context(), logr.Discard()))
	records, err := podworker.OpenRecords(filepath.Join(l.dir, "records"))
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"kubelet/pods", "links"} {
		if err := os.MkdirAll(filepath.Join(l.dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	users, err := userns.Open(userns.Config{Pods: filepath.Join(l.dir, "kubelet", "pods"), IDsPerPod: userns.Unit, MaxPods: 10})
	if err != nil {
		return nil, err
	}
	api := client{n: n}
	cri := faultyRuntime{fakecri.Service{Runtime: l.rt}, n}
	dirs := criconfig.Dirs{Root: filepath.Join(l.dir, "kubelet")}
	n.status = newStatusWriter(n)
	if l.static || l.real {
		n.status = status.New(api, nil)
	}
	pods := podworker.NewPods()
	n.prober = prober.New(cri, silent{}, pods.Wake, nil)
	n.prober.DialBy(n.dial)
	tokens := identity.NewTokenSource(api)
	n.objects = objectcache.New(api, pods.ObjectChanged)
	deps := podops.Deps{
		Runtime: cri, Images: faultyImages{fakecri.Images{Runtime: l.rt}, n}, Client: api, Tokens: tokens, Objects: n.objects, Users: users,
		Plugins: plugin{n}, Claims: faultyClaims{l.claims, n},
		CPUs: func(context.Context, string) (string, error) { return "", nil },
		Volumes: &volume.Mounter{
			Dirs: dirs, Objects: func(ctx context.Context) volume.Objects { return n.objects.For(ctx) }, Tokens: tokens, NodeName: "n1",
			Allocatable: func() v1.ResourceList { return nil },
		},
		Dial:    n.dial,
		Cgroups: l.cgroups, Events: silent{}, Status: n.status,
		Services: func(context.Context, *v1.Pod) ([]*v1.Service, error) { return services, nil },
		Node:     func() podops.Node { return podops.Node{Memory: 8 << 30} },
	}
	if l.policy != "" {
		records, err := l.records()
		if err != nil {
			return nil, err
		}
		deps.Pulled = pullRecords{records, n}
	}
	if l.broken.deps != nil {
		l.broken.deps(&deps)
	}
	ops := podops.New(podops.Config{
		NodeName: "n1", Dirs: dirs, PodLogs: filepath.Join(l.dir, "logs"), ContainerLogs: filepath.Join(l.dir, "links"), PidsLimit: -1,
		ClusterDNS: []string{clusterDNS}, ClusterDomain: clusterDomain, HostIPs: []string{hostIP},
	}, deps)
	look := fmt.Sprintf("%d look", number)
	n.gate = n.newGate(pods)
	n.table = podworker.NewTable(pods, podworker.Deps{
		Runtime: cri, Executor: watched{ops, n}, Status: sink{n.status, n}, Prober: n.prober, Records: records,
		Admission: n.gate, Residue: ops.Residue, FinalMessage: ops.FinalMessage,
		Left: func() {
			if n.static != nil {
				n.static.Poke()
			}
		},
		Tell: ops.Tell, Stepped: func(time.Duration) { l.hist.add(Event{What: Stepped}) },
		Node: func() podplan.Node {
			time.Sleep(l.dice.upTo(100*time.Microsecond, look)) // no two looks at the same moment
			return podplan.Node{HostIPs: []string{hostIP}, RuntimeName: "fake", CgroupsManaged: true, MaxCrashWait: l.crashWait}
		},
	})
	if m, ok := n.status.(*status.Manager); ok && l.static {
		n.static = staticpod.New(staticpod.Deps{
			Table: n.table, Status: m, Client: api, Listed: n.listed.Load, Settled: n.table.IsSynced,
			Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node"}} },
		})
	}
	l.hist.add(Event{What: KubeletUp})
	go n.run()
	return n, nil
}

// run does what package kubelet does around the table.
func (n *node) run() {
	defer close(n.done)
	var all sync.WaitGroup
	all.Go(func() { _ = n.status.Run(n.ctx) })
	all.Go(func() { _ = n.objects.Run(n.ctx) })
	if n.adopt() {
		all.Go(func() { _ = n.table.Run(n.ctx) })
		all.Go(n.relist)
		if n.static != nil {
			all.Go(func() { _ = n.static.Run(n.ctx) })
		}
		n.follow.Store(true)
		n.deliver()
		n.gate.Listed(n.ran)
		n.settled.Store(true)
		n.table.Synced()
		if n.static != nil {
			n.static.Poke()
		}
	}
	<-n.ctx.Done()
	all.Wait()
	n.prober.Wait()
}

// adopt makes workers for everything that the runtime, a record or a folder knows.
func (n *node) adopt() bool {
	cri := faultyRuntime{fakecri.Service{Runtime: n.life.rt}, n}
	for {
		list, err := cri.ListPodSandbox(n.ctx, nil)
		if n.gone() {
			return false
		}
		if err == nil {
			for uid := range podUIDs(list) {
				n.ranAt(types.UID(uid))
				n.table.Adopt(orphan(types.UID(uid)))
			}
			break
		}
	}
	for _, dir := range []string{"records", "kubelet/pods"} {
		entries, err := os.ReadDir(filepath.Join(n.life.dir, dir))
		if err != nil {
			n.life.hist.fail(err)
		}
		for _, e := range entries {
			n.table.Adopt(orphan(types.UID(strings.TrimSuffix(e.Name(), ".json"))))
		}
	}
	return true
}

// adoptLate tears down what was made after its pod was gone.
func (n *node) adoptLate() {
	list, err := faultyRuntime{fakecri.Service{Runtime: n.life.rt}, n}.ListPodSandbox(n.ctx, nil)
	if err != nil || !n.table.IsSynced() {
		return
	}
	for uid := range podUIDs(list) {
		if _, known := n.table.Get(types.UID(uid)); !known {
			n.table.Adopt(orphan(types.UID(uid)))
		}
	}
}

func orphan(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
}

// relist is the safety net for lost events.
func (n *node) relist() {
	for {
		t := time.NewTimer(2*time.Minute + n.life.dice.upTo(time.Minute, "relist"))
		select {
		case <-n.ctx.Done():
			t.Stop()
			return
		case <-t.C:
			for _, s := range n.table.List() {
				n.table.Relist(s.Pod.UID)
			}
			n.adoptLate()
		}
	}
}

// deliver shows the table what the sources have now.
func (n *node) deliver() {
	if !n.follow.Load() {
		return
	}
	pod, last := n.life.api.get()
	switch {
	case n.static != nil:
		n.deliverStatic(pod, last)
	case pod != nil:
		n.objects.Use(pod.UID, objectcache.Refs(pod))
		_, known := n.table.Get(pod.UID)
		n.table.Set(pod, false)
		if !known {
			n.arrived(pod)
		}
	default:
		n.objects.Use(n.life.uid, nil)
		n.table.Remove(n.life.uid, last)
	}
}

// deliverStatic shows the manifest and the mirror, in any order.
func (n *node) deliverStatic(mirror, last *v1.Pod) {
	manifest := func() {
		var pods []*v1.Pod
		if pod := n.life.manifest.Load(); pod != nil {
			pods = append(pods, pod)
		}
		n.static.Set("file", pods)
	}
	first := n.life.dice.chance(0.5, "the manifest comes first")
	if first {
		manifest()
	}
	if mirror != nil {
		n.static.SetMirror(mirror, false)
	} else if last != nil {
		n.static.SetMirror(last, true)
	}
	n.listed.Store(true)
	n.static.Poke()
	if !first {
		manifest()
	}
}

// kill is kill -9: nothing that this kubelet still does has an effect.
func (n *node) kill(where string) {
	n.once.Do(func() {
		n.life.hist.add(Event{What: KubeletDown, Text: "killed: " + where})
		close(n.dead)
		n.cancel()
		n.life.killed <- struct{}{}
	})
}

// gone reports whether it was killed or stopped: what ends because of that is not recorded.
func (n *node) gone() bool {
	select {
	case <-n.dead:
		return true // before ctx ends
	default:
		return n.ctx.Err() != nil
	}
}

// stop stops it as SIGTERM does, unless it was killed, and waits for its end.
func (n *node) stop() {
	n.once.Do(func() {
		n.life.hist.add(Event{What: KubeletDown, Text: "stopped"})
		n.cancel()
	})
	<-n.done
}

// opDone is what is recorded for an op that ended well.
const opDone = "done"

// opKey is the context key for the key of the op that the context belongs to.
type opKey struct{}

// watched records in the history which ops run.
type watched struct {
	ops *podops.Ops
	n   *node
}

func (w watched) Do(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	h := w.n.life.hist
	// Ops that are started together begin one after another, always in the same order.
	key := w.n.key + "op " + string(op.Key())
	time.Sleep(w.n.life.dice.upTo(100*time.Microsecond, key))
	if ctx.Err() == nil {
		h.add(Event{What: OpBegins, UID: in.Pod.UID, Op: op, Ending: in.Record.Ending != nil})
	}
	do, b := op, &w.n.life.broken
	if b.before != nil {
		b.before(&do)
	}
	res := w.ops.Do(context.WithValue(ctx, opKey{}, string(op.Key())), do, in)
	if b.after != nil {
		b.after(w, op, in)
	}
	if b.result != nil {
		b.result(&res)
	}
	text := opDone
	switch {
	case res.Err != nil:
		text = res.Err.Error()
	case res.HookFailed != "":
		text = "hook failed: " + res.HookFailed
	}
	if !w.n.gone() {
		h.add(Event{What: OpEnds, UID: in.Pod.UID, Op: op, Text: text})
	}
	return res
}

// sink records in the history which statuses the worker puts.
type sink struct {
	writer
	n *node
}

func (s sink) Put(pod *v1.Pod, st v1.PodStatus) {
	if s.n.put(pod.UID, &st) {
		s.writer.Put(pod, st)
	}
}

func (s sink) PutSoon(pod *v1.Pod, st v1.PodStatus) {
	if s.n.put(pod.UID, &st) {
		s.writer.PutSoon(pod, st)
	}
}

// put reports whether a status is to be passed on: a statusWriter need not get the same one twice.
func (n *node) put(uid types.UID, st *v1.PodStatus) bool {
	if n.life.broken.status != nil {
		n.life.broken.status(st)
	}
	wire, err := st.Marshal()
	if err != nil {
		n.life.hist.fail(err)
	}
	if (st.Phase == v1.PodSucceeded || st.Phase == v1.PodFailed) && n.life.claims.has(n.life.claims.noted, uid) {
		n.life.hist.fail(fmt.Errorf("phase %s of %s is told while its devices are prepared", st.Phase, uid))
	}
	same := string(wire) == n.wire
	if n.wire = string(wire); !same && n.ctx.Err() == nil {
		n.life.hist.add(Event{What: StatusPut, UID: uid, Status: st})
	}
	_, statusWriter := n.status.(*statusWriter)
	return !same || !statusWriter
}

type silent struct{}

func (silent) Eventf(runtime.Object, string, string, string, ...any) {}

// cgroups remembers which cgroups exist.
type cgroups struct {
	l  *life
	mu sync.Mutex
	m  map[string]bool
}

func (c *cgroups) Ensure(p string, _ *specs.LinuxResources) error {
	if c.l.faulty() && c.l.dice.chance(0.05, "cgroup fails") {
		return fmt.Errorf("cgroup: %w", errFault)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[p] = true
	return nil
}

func (c *cgroups) Remove(p string) error {
	if c.l.faulty() && c.l.dice.chance(0.2, "cgroup is busy") {
		return fmt.Errorf("cgroup: %w", errFault)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.m, p)
	return nil
}

func (c *cgroups) Kill(string) error { return nil }

func (c *cgroups) Exists(p string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[p]
}

func (c *cgroups) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.m)
}

func (c *cgroups) left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.m)
}
