package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"wherry.dev/test/clocksteps"
	nodes "wherry.dev/test/cluster"
	"wherry.dev/test/disks"
	"wherry.dev/test/images"
)

// fault is something that happens to a server or a node. undo ends it.
type fault struct {
	name string
	do   func(s *several, m *nodes.Machine) (undo func() error, err error)
	last [2]time.Duration // how long it lasts, at least and at most
}

// undone returns a command on a machine that ends a fault.
func undone(m *nodes.Machine, command ...string) func() error {
	return func() error { return outputOf(m.Command(context.Background(), command[0], command[1:]...)) }
}

func outputOf(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return nil
}

// cutOff drops all that comes to a machine, and all that it sends.
func cutOff(_ *several, m *nodes.Machine) (undo func() error, err error) {
	const rules = "table inet cut { chain in { type filter hook input priority raw; iifname eth0 drop; }; chain out { type filter hook output priority raw; oifname eth0 drop; }; }"
	return undone(m, "nft", "delete table inet cut"), undone(m, "nft", rules)()
}

var faults = []fault{
	{"killed", func(s *several, m *nodes.Machine) (func() error, error) {
		return func() error { return s.again(m) }, s.signal(m, syscall.SIGKILL)
	}, [2]time.Duration{0, 8 * time.Second}},
	{"stopped and started", func(s *several, m *nodes.Machine) (func() error, error) {
		return func() error { return s.again(m) }, s.signal(m, syscall.SIGTERM)
	}, [2]time.Duration{2 * time.Second, 6 * time.Second}},
	{"paused", func(s *several, m *nodes.Machine) (func() error, error) {
		return func() error { return s.signal(m, syscall.SIGCONT) }, s.signal(m, syscall.SIGSTOP)
	}, [2]time.Duration{500 * time.Millisecond, 8 * time.Second}},
	{"cut off", cutOff, [2]time.Duration{time.Second, 12 * time.Second}},
	{"cut off for long", cutOff, [2]time.Duration{20 * time.Second, 26 * time.Second}}, // its pods are evicted meanwhile
	{"without room on its disk", func(_ *several, m *nodes.Machine) (func() error, error) {
		full := filepath.Join(filepath.Dir(m.Data), "full")
		return func() error { return os.Remove(full) }, disks.Fill(full)
	}, [2]time.Duration{2 * time.Second, 10 * time.Second}},
	{"on a lossy link", func(_ *several, m *nodes.Machine) (func() error, error) {
		const rules = "table inet lossy { chain in { type filter hook input priority raw; iifname eth0 numgen random mod 100 < 15 drop; }; }"
		return undone(m, "nft", "delete table inet lossy"), undone(m, "nft", rules)()
	}, [2]time.Duration{2 * time.Second, 8 * time.Second}},
}

// wrongClocks are for programs whose clocks can be set.
var wrongClocks = []fault{
	{"ten minutes ahead", clockSet(10 * time.Minute), [2]time.Duration{2 * time.Second, 26 * time.Second}},
	{"ten minutes behind", clockSet(-10 * time.Minute), [2]time.Duration{2 * time.Second, 26 * time.Second}},
}

// clockSet sets the clock of a machine, and sets it right again.
func clockSet(by time.Duration) func(*several, *nodes.Machine) (func() error, error) {
	return func(s *several, m *nodes.Machine) (func() error, error) {
		s.history.wrongClocks()
		return func() error { return s.clocks[m.Name].Set(0) }, s.clocks[m.Name].Set(by)
	}
}

// impatient servers give up on a node soon: nodes renew their leases every ten seconds.
// They have few node ports, which are soon given again.
var impatient = []string{"--controller-manager-arg", "node-monitor-grace-period=12s", "--apiserver-arg", "service-node-port-range=30000-30127"}

// again starts an instance that has ended.
func (s *several) again(m *nodes.Machine) error {
	args := append([]string{"up", "--detach", "--node-name", m.Name}, impatient...)
	if m == s.net.Machines[len(s.net.Machines)-1] {
		args = []string{"join", "--detach", "--node-name", m.Name}
	}
	_, err := s.on(m, args...)
	return err
}

// once looks at the pods of a stateful set, on all machines at once: they share the kernel. A pod must not run twice.
func (h *history) once(name string) {
	for !h.ended.Load() {
		all, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			panic(err) // impossible: the pattern is good
		}
		runs := map[string]map[string]bool{} // by pod, the containers
		for _, file := range all {
			env, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			for v := range strings.SplitSeq(string(env), "\x00") {
				pod, ok := strings.CutPrefix(v, "HOSTNAME="+name+"-")
				if !ok {
					continue
				}
				if ns, err := os.Readlink(filepath.Join(filepath.Dir(file), "ns", "pid")); err == nil {
					if runs[pod] == nil {
						runs[pod] = map[string]bool{}
					}
					runs[pod][ns] = true
				}
			}
		}
		h.mu.Lock()
		for pod, containers := range runs {
			h.seen[name+"-"+pod] = true
			if len(containers) > 1 {
				h.lost = append(h.lost, fmt.Sprintf("%s-%s runs %d times at once", name, pod, len(containers)))
			}
		}
		h.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
	}
}

// history is what clients know of what they have done.
type history struct {
	ended   atomic.Bool
	done    sync.WaitGroup
	clients []kubernetes.Interface

	mu       sync.Mutex
	acked    map[string]int // objects, and the last number that was acknowledged
	tried    map[string]int // the last number that was tried
	services int
	unknown  int
	terms    int             // that began because another server had gone
	clocks   time.Time       // until then, times in leases may be those of a clock that is wrong
	lost     []string        // what a client saw that cannot be
	seen     map[string]bool // pods of stateful sets that ran

	admissions, refusals int // of what a quota limits
}

func newHistory() *history {
	return &history{acked: map[string]int{}, tried: map[string]int{}, seen: map[string]bool{}}
}

// write creates objects and counts them up, each client with any server that answers.
func (h *history) write(ctx context.Context, who int) {
	at := who
	// with does something with one server after another, until one has answered. It returns what the first one said that is
	// not known to have done nothing.
	with := func(do func(context.Context, kubernetes.Interface) error) error {
		for {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := do(ctx, h.clients[at%len(h.clients)])
			cancel()
			if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || h.ended.Load() {
				return err
			}
			at++
			h.mu.Lock()
			h.unknown++
			h.mu.Unlock()
			time.Sleep(50 * time.Millisecond)
		}
	}
	for n := 0; !h.ended.Load(); n++ {
		name := fmt.Sprintf("h-%d-%d", who, n)
		h.note(h.tried, name, 0)
		err := with(func(ctx context.Context, c kubernetes.Interface) error {
			cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"history": ""}}, Data: map[string]string{"n": "0"}}
			_, err := c.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
			return err
		})
		if err != nil && !apierrors.IsAlreadyExists(err) { // an attempt whose answer was lost
			continue
		}
		h.note(h.acked, name, 0)
		for i := 1; i <= 3 && !h.ended.Load(); i++ {
			h.note(h.tried, name, i)
			err := with(func(ctx context.Context, c kubernetes.Interface) error {
				now, err := c.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				seen, err := strconv.Atoi(now.Data["n"])
				if err != nil {
					return err
				}
				if seen < i-1 || seen > i {
					h.mu.Lock()
					h.lost = append(h.lost, fmt.Sprintf("%s: %d was acknowledged, and a read has %d", name, i-1, seen))
					h.mu.Unlock()
				}
				now.Data["n"] = strconv.Itoa(i)
				_, err = c.CoreV1().ConfigMaps("default").Update(ctx, now, metav1.UpdateOptions{})
				return err
			})
			if err != nil {
				break
			}
			h.note(h.acked, name, i)
		}
		if n%8 == 0 {
			err := with(func(ctx context.Context, c kubernetes.Interface) error {
				svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"history": ""}}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}, Type: v1.ServiceTypeNodePort}}
				_, err := c.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
				return err
			})
			if err == nil {
				h.mu.Lock()
				h.services++
				h.mu.Unlock()
			}
			_ = with(func(ctx context.Context, c kubernetes.Interface) error { // there are that many at a time, for each client
				return c.CoreV1().Services("default").Delete(ctx, fmt.Sprintf("h-%d-%d", who, n-8*20), metav1.DeleteOptions{})
			})
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (h *history) note(what map[string]int, name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	what[name] = n
}

// leaders watches a lease: whoever takes it over does so when the one before has let it go, or must have stopped.
func (h *history) leaders(ctx context.Context, lease string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for !h.ended.Load() {
			time.Sleep(50 * time.Millisecond)
		}
		cancel()
	}()
	var before *coordinationv1.Lease
	var heard time.Time
	for i := 0; ctx.Err() == nil; i++ {
		// One server after another, each from where the one before has ended: no change is missed.
		o := metav1.ListOptions{FieldSelector: "metadata.name=" + lease, TimeoutSeconds: new(int64(20))}
		if before != nil {
			o.ResourceVersion = before.ResourceVersion
		}
		w, err := h.clients[i%len(h.clients)].CoordinationV1().Leases("kube-system").Watch(ctx, o)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		quiet := time.NewTimer(3 * time.Second) // a server that is cut off says nothing
		for open := true; open; {
			select {
			case ev, ok := <-w.ResultChan():
				now, is := ev.Object.(*coordinationv1.Lease)
				if open = ok && is; !open {
					if ok && ev.Type == watch.Error {
						before = nil
					}
					continue
				}
				quiet.Reset(3 * time.Second)
				h.compare(before, now, heard)
				before, heard = now, time.Now()
			case <-quiet.C:
				open = false
			}
		}
		quiet.Stop()
		w.Stop()
	}
}

// wrongClocks lets leases be compared by when they were heard of, and not by the times in them, until those of the last wrong
// clock must have been replaced.
func (h *history) wrongClocks() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clocks = time.Now().Add(30 * time.Second)
}

// compare looks at two states of a lease, of which the first one was heard of at a time.
func (h *history) compare(before, now *coordinationv1.Lease, heard time.Time) {
	if before == nil {
		return
	}
	had, has := ptr.Deref(before.Spec.HolderIdentity, ""), ptr.Deref(now.Spec.HolderIdentity, "")
	if had == "" || has == "" || had == has {
		return
	}
	lasts := time.Duration(*before.Spec.LeaseDurationSeconds) * time.Second
	due := before.Spec.RenewTime.Add(lasts)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.terms++
	early := due.Sub(now.Spec.AcquireTime.Time)
	if time.Now().Before(h.clocks) {
		early = lasts - time.Since(heard) - time.Second // which is for the way of the news
	}
	if early > 0 {
		h.lost = append(h.lost, fmt.Sprintf("%s leads %s before the lease of %s has ended", has, early, had))
	}
}

// check compares what was acknowledged with what each server has.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lost) > 0 {
		t.Errorf("%d things that cannot be: %s", len(h.lost), strings.Join(h.lost[:min(len(h.lost), 5)], "; "))
	}
	for i, c := range h.clients {
		list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "history"})
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		for j := range list.Items {
			have[list.Items[j].Name] = list.Items[j].Data["n"]
		}
		bad := 0
		for name, acked := range h.acked {
			n, err := strconv.Atoi(have[name])
			if err != nil || n < acked || n > h.tried[name] {
				if bad++; bad < 5 {
					t.Errorf("server %d: %s is %q; %d was acknowledged, and %d tried", i+1, name, have[name], acked, h.tried[name])
				}
			}
		}
		unique(t, c)
	}
}

// unique checks that no address and no port of services is given twice.
func unique(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	services, err := c.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ips, ports := map[string]string{}, map[int32]string{}
	for i := range services.Items {
		svc := &services.Items[i]
		if other := ips[svc.Spec.ClusterIP]; other != "" {
			t.Errorf("%s is the address of %s and %s", svc.Spec.ClusterIP, other, svc.Name)
		}
		ips[svc.Spec.ClusterIP] = svc.Name
		for _, p := range svc.Spec.Ports {
			if other := ports[p.NodePort]; p.NodePort != 0 && other != "" {
				t.Errorf("%d is the node port of %s and %s", p.NodePort, other, svc.Name)
			}
			ports[p.NodePort] = svc.Name
		}
	}
}

// Servers and a node fail at random moments, in all the ways that a test can think of, while clients write: nothing that was
// acknowledged is lost, no address is given twice, there are never two leaders, and everything comes back as it was.
// FAULTS says how many; the seed is told, and FAULTS_SEED sets it. FAULTS_ONLY, a regular expression, says which.
func TestFaults(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("FAULTS"))
	if err != nil || rounds < 1 {
		t.Skip("set FAULTS to the number of faults: make faults")
	}
	seed := uint64(time.Now().UnixNano())
	if set, err := strconv.ParseUint(os.Getenv("FAULTS_SEED"), 10, 64); err == nil {
		seed = set
	}
	t.Logf("FAULTS_SEED=%d", seed)
	only, err := regexp.Compile(os.Getenv("FAULTS_ONLY"))
	if err != nil {
		t.Fatalf("FAULTS_ONLY: %v", err)
	}
	program, err := clocksteps.Build(t.Context(), wherryPath(t), t.TempDir())
	all := slices.Concat(faults, wrongClocks)
	if errors.Is(err, clocksteps.ErrUnsupported) {
		t.Log(err)
		program, all, err = wherryPath(t), faults, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	kinds := slices.DeleteFunc(slices.Clone(all), func(f fault) bool { return !only.MatchString(f.name) })
	if len(kinds) == 0 {
		t.Fatalf("FAULTS_ONLY=%s: there is no such fault", only)
	}
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	s := severalOf(t, program, 4, 0)
	s.clocks = map[string]*clocksteps.Clock{}
	for _, m := range s.net.Machines { // each has a disk of its own, which can be full
		disk := filepath.Dir(m.Data)
		disks.Tmpfs(t, disk, "mode=0711,size=1500m")
		clock, err := clocksteps.New(disk + ".clock")
		if err != nil {
			t.Fatal(err)
		}
		s.clocks[m.Name], m.Env = clock, append(os.Environ(), clock.Env())
		if err := errors.Join(os.MkdirAll(filepath.Join(m.Data, "images"), 0o711), os.Mkdir(m.Run, 0o711), images.SaveBusybox(filepath.Join(m.Data, "images", "busybox.tar"))); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.takeDown() }) // before the disks go
	servers, worker := s.net.Machines[:3], s.net.Machines[3]
	s.serveOn(servers, impatient...)
	if err := s.join(worker); err != nil {
		t.Fatal(err)
	}
	set := keepers(4)
	for _, key := range []string{v1.TaintNodeUnreachable, v1.TaintNodeNotReady} {
		set.Spec.Template.Spec.Tolerations = append(set.Spec.Template.Spec.Tolerations,
			v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64(1))})
	}
	if _, err := s.client.AppsV1().StatefulSets("default").Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		s.await(fmt.Sprintf("keeper-%d", i), "ready", ready)
	}
	s.create(teller(worker))
	before := s.await("on-"+worker.Name, "ready", ready)
	h := newHistory()
	s.history = h
	for _, m := range servers {
		h.clients = append(h.clients, s.clientAt(m))
	}
	for i := range 4 {
		h.done.Go(func() { h.write(t.Context(), i) })
	}
	h.done.Go(func() { h.leaders(t.Context(), "kube-controller-manager") })
	h.done.Go(func() { h.once("keeper") })
	makeTenant(t, h.clients)
	for i := range h.clients {
		h.done.Go(func() { h.tenant(t.Context(), i) })
	}
	h.done.Go(func() { h.count(t.Context()) })
	for round := range rounds {
		f := kinds[random.IntN(len(kinds))]
		m := s.net.Machines[random.IntN(len(s.net.Machines))]
		lasts := f.last[0] + time.Duration(random.Int64N(int64(f.last[1]-f.last[0])))
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
		t.Logf("%d: %s is %s for %s", round+1, m.Name, f.name, lasts.Round(time.Millisecond))
		undo, err := f.do(s, m)
		if err != nil {
			t.Fatalf("%s cannot be %s: %v", m.Name, f.name, err)
		}
		time.Sleep(lasts)
		if err := undo(); err != nil {
			t.Errorf("%s, which was %s, does not come back: %v", m.Name, f.name, err)
		}
		s.whole(servers)
		unique(t, s.client)
		if t.Failed() {
			break
		}
	}
	for i := range 4 {
		s.await(fmt.Sprintf("keeper-%d", i), "ready after everything", ready)
	}
	h.ended.Store(true)
	h.done.Wait()
	h.check(t)
	h.checkTenant(t)
	if len(h.seen) != 4 {
		t.Errorf("the processes of these pods were seen: %v", h.seen)
	}
	for _, m := range s.net.Machines {
		if dirs := s.directories(m); len(dirs) != 1 {
			t.Errorf("volumes on %s: %v", m.Name, dirs)
		}
	}
	after, err := s.client.CoreV1().Pods("default").Get(t.Context(), before.Name, metav1.GetOptions{})
	if err != nil || after.UID != before.UID || after.Status.PodIP != before.Status.PodIP || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("a pod that was there before: %+v, %v", after, err)
	}
	t.Logf("%d objects and %d services were acknowledged; %d requests had to be made again; %d terms began after a failure; a tenant at its quota was admitted %d times, and refused %d",
		len(h.acked), h.services, h.unknown, h.terms, h.admissions, h.refusals)
}

// whole waits until all servers are members that answer, one leads, and all nodes are Ready.
func (s *several) whole(servers []*nodes.Machine) {
	s.t.Helper()
	for _, m := range servers {
		s.eventually("the members as "+m.Name+" sees them", func() error {
			list, err := s.members(m)
			if err != nil {
				return err
			}
			leaders := 0
			for _, is := range list {
				if is.Leader {
					leaders++
				}
				if !is.Answers || is.Learner {
					return fmt.Errorf("%+v", is)
				}
			}
			if len(list) != len(servers) || leaders != 1 {
				return fmt.Errorf("%+v", list)
			}
			return nil
		})
	}
	s.eventually("all nodes", func() error {
		list, err := s.client.CoreV1().Nodes().List(s.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var not []string
		for i := range list.Items {
			for _, c := range list.Items[i].Status.Conditions {
				if c.Type == v1.NodeReady && c.Status != v1.ConditionTrue {
					not = append(not, list.Items[i].Name)
				}
			}
		}
		if len(not) > 0 || len(list.Items) != len(servers)+1 {
			return errors.New("not ready: " + strings.Join(not, ", "))
		}
		return nil
	})
	s.serversAre(s.client, servers...)
}
