package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	nodes "wherry.dev/test/cluster"
)

// newServers makes machines of which the first n are servers with nodes, one after another.
func newServers(t *testing.T, machines, n int) *several {
	t.Helper()
	s := newSeveral(t, machines, 0)
	s.serveOn(s.net.Machines[:n])
	return s
}

// serveOn starts servers, one after another, the first machine's first.
func (s *several) serveOn(servers []*nodes.Machine, flags ...string) {
	s.t.Helper()
	s.serve(flags...)
	for _, m := range servers[1:] {
		if err := s.joinServer(m, flags...); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *several) serverToken() string {
	s.t.Helper()
	token, err := s.on(s.net.Machines[0], "token", "create", "--server")
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(token)
}

func (s *several) joinServer(m *nodes.Machine, flags ...string) error {
	s.t.Helper()
	_, err := s.on(m, append([]string{"up", "--detach", "--join-server", s.net.Machines[0].Server(), "--token", s.serverToken(), "--node-name", m.Name}, flags...)...)
	return err
}

// up starts a server again that is one of several already.
func (s *several) up(m *nodes.Machine) {
	s.t.Helper()
	if _, err := s.on(m, "up", "--detach", "--node-name", m.Name); err != nil {
		s.t.Fatal(err)
	}
}

func (s *several) kill(m *nodes.Machine) {
	s.t.Helper()
	if err := s.signal(m, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
}

func (s *several) signal(m *nodes.Machine, sig syscall.Signal) error {
	pid, err := m.PID()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// clientAt returns an administrator's client of the server on a machine.
func (s *several) clientAt(m *nodes.Machine) kubernetes.Interface {
	s.t.Helper()
	client, err := m.Client()
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

func (s *several) members(m *nodes.Machine) ([]nodes.Member, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return m.Members(ctx)
}

// leader returns the machine whose etcd leads, as another one sees it.
func (s *several) leader(seen *nodes.Machine) *nodes.Machine {
	s.t.Helper()
	list, err := s.members(seen)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, is := range list {
		if is.Leader {
			return s.machine(is.Name)
		}
	}
	s.t.Fatalf("nobody leads: %+v", list)
	return nil
}

func (s *several) machine(name string) *nodes.Machine {
	s.t.Helper()
	i := slices.IndexFunc(s.net.Machines, func(m *nodes.Machine) bool { return m.Name == name })
	if i < 0 {
		s.t.Fatalf("there is no machine %s", name)
	}
	return s.net.Machines[i]
}

// serversAre waits until the endpoints of default/kubernetes are those of the machines.
func (s *several) serversAre(client kubernetes.Interface, want ...*nodes.Machine) {
	s.t.Helper()
	s.eventually("the endpoints of the servers", func() error {
		list, err := client.DiscoveryV1().EndpointSlices("default").Get(s.t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var have, wanted []string
		for _, e := range list.Endpoints {
			have = append(have, e.Addresses...)
		}
		for _, m := range want {
			wanted = append(wanted, m.Address)
		}
		slices.Sort(have)
		if slices.Sort(wanted); !slices.Equal(have, wanted) {
			return fmt.Errorf("%v, want %v", have, wanted)
		}
		return nil
	})
}

// load writes through servers until it is stopped: objects, and a number each that is counted up. No request may fail, and
// what was acknowledged must be there afterwards, once.
type load struct {
	ended  atomic.Bool
	done   sync.WaitGroup
	mu     sync.Mutex
	made   map[string]int // objects, and what they were last known to count
	errs   []error
	pauses time.Duration // the longest request
	total  atomic.Int64
}

func (s *several) load(round int, clients ...kubernetes.Interface) *load {
	l := &load{made: map[string]int{}}
	for i, c := range clients {
		for j := range 3 {
			l.done.Go(func() {
				for n := 0; !l.ended.Load(); n++ {
					began := time.Now()
					name := fmt.Sprintf("load-%d-%d-%d-%d", round, i, j, n)
					err := l.write(s.t.Context(), c, name)
					l.mu.Lock()
					if err != nil {
						l.errs = append(l.errs, fmt.Errorf("%s: %w", name, err))
					}
					l.pauses = max(l.pauses, time.Since(began))
					l.mu.Unlock()
				}
			})
		}
	}
	return l
}

// write creates an object and counts it up once.
func (l *load) write(ctx context.Context, c kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"load": ""}}, Data: map[string]string{"n": "0"}}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	l.know(name, 0)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := c.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(now.Data["n"])
		if err != nil {
			return err
		}
		now.Data["n"] = strconv.Itoa(n + 1)
		_, err = c.CoreV1().ConfigMaps("default").Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	l.know(name, 1)
	return nil
}

func (l *load) know(name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[name] = n
	l.total.Add(1)
}

// check stops the load, and compares what was acknowledged with what a server has.
func (l *load) check(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	l.ended.Store(true)
	l.done.Wait()
	if len(l.errs) > 0 {
		t.Errorf("%d requests failed, such as %v", len(l.errs), l.errs[0])
	}
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "load"})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for i := range list.Items {
		have[list.Items[i].Name] = list.Items[i].Data["n"]
	}
	for name, n := range l.made {
		if have[name] != strconv.Itoa(n) {
			t.Errorf("%s: %q, and %d was acknowledged", name, have[name], n)
		}
	}
	t.Logf("%d requests were acknowledged; the longest write took %s", l.total.Load(), l.pauses.Round(time.Millisecond))
}

// Three servers have their data in common. One after another is killed, each time the one that leads: those that are left go
// on without a failed request, and so do the scheduler, the controllers, the nodes and their pods.
func TestServersFail(t *testing.T) {
	t.Parallel()
	s := newServers(t, 4, 3)
	servers, worker := s.net.Machines[:3], s.net.Machines[3]
	if err := s.join(worker); err != nil {
		t.Fatal(err)
	}
	s.serversAre(s.client, servers...)
	list, err := s.members(servers[2])
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for i, is := range list {
		if is.Name != servers[i].Name || is.Address != servers[i].Address+":2380" || is.Learner || !is.Answers {
			t.Errorf("%+v", is)
		}
	}
	// Pods of all nodes reach each other, and ask the DNS server of their own node.
	for _, m := range s.net.Machines {
		s.create(teller(m))
	}
	for _, from := range s.net.Machines {
		s.await("on-"+from.Name, "ready", ready)
		s.eventually("names", func() error {
			out, err := s.kubectl("exec", "on-"+from.Name, "--", "nslookup", "kubernetes.default.svc.cluster.local")
			if err != nil || !strings.Contains(out, "10.96.0.1") {
				err = fmt.Errorf("%w: %s", cmp.Or(err, errors.New("another answer")), out)
			}
			return err
		})
		for _, to := range s.net.Machines {
			p := s.await("on-"+to.Name, "ready", ready)
			if name, _, err := s.asks("on-"+from.Name, p.Status.PodIP); err != nil || name != p.Name {
				t.Errorf("%s → %s: %s, %v", from.Name, to.Name, name, err)
			}
		}
	}
	// Every server can say what the scheduler thinks, which one of them has.
	s.create(busybox("nowhere", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"no": "such"} }, script(loop)))
	for _, m := range servers {
		s.eventually("explain on "+m.Name, func() error {
			out, err := s.on(m, "explain", "pod/nowhere")
			if err == nil && !strings.Contains(out, "would help") {
				err = errors.New(out)
			}
			return err
		})
	}
	// And draw the way of a pod, of which three processes have seen a part.
	s.create(busybox("placed", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelHostname: worker.Name} }, script(loop)))
	s.await("placed", "ready", ready)
	for _, m := range servers {
		s.eventually("trace on "+m.Name, func() error {
			out, err := s.on(m, "trace", "pod/placed")
			for _, part := range []string{"sandbox", "scheduler: bind"} {
				if err == nil && !strings.Contains(strings.ToLower(out), part) {
					err = fmt.Errorf("no %s: %s", part, out)
				}
			}
			return err
		})
	}
	for round := range 2 {
		leader := s.leader(servers[0])
		var others []*nodes.Machine
		for _, m := range servers {
			if m != leader {
				others = append(others, m)
			}
		}
		at := s.clientAt(others[0])
		before := s.await("on-"+worker.Name, "ready", ready)
		l := s.load(round, at, s.clientAt(others[1]))
		time.Sleep(500 * time.Millisecond)
		s.kill(leader)
		// A pod that nobody has placed needs the scheduler, and the node of a worker.
		name := fmt.Sprintf("after-%d", round)
		if _, err := at.CoreV1().Pods("default").Create(t.Context(), busybox(name, func(p *v1.Pod) {
			p.Spec.NodeSelector = map[string]string{v1.LabelHostname: worker.Name}
		}, script(loop)), metav1.CreateOptions{}); err != nil {
			t.Errorf("create a pod while %s is gone: %v", leader.Name, err)
		}
		killed := time.Now()
		s.eventually("a pod after a server was killed", func() error {
			p, err := at.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && !ready(p) {
				err = fmt.Errorf("%s on %q", p.Status.Phase, p.Spec.NodeName)
			}
			return err
		})
		t.Logf("%s was killed; a pod ran on %s after %s", leader.Name, worker.Name, time.Since(killed).Round(time.Millisecond))
		s.serversAre(at, others...)
		l.check(t, at)
		s.up(leader)
		s.serversAre(at, servers...)
		after, err := s.clientAt(leader).CoreV1().Pods("default").Get(t.Context(), before.Name, metav1.GetOptions{})
		if err != nil || after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("a pod that was there before: %+v, %v", after, err)
		}
	}
	// Addresses were given once.
	pods, err := s.client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if ip := p.Status.PodIP; ip != "" && by[ip] != "" {
			t.Errorf("%s is the address of %s and of %s", ip, by[ip], p.Name)
		}
		by[p.Status.PodIP] = p.Name
	}
}

// A server leaves, and joins again. Two that have lost a majority say so, and go on when it is back; data that are lost are
// not made up for by an empty cluster.
func TestServersComeAndGo(t *testing.T) {
	t.Parallel()
	s := newServers(t, 2, 2)
	first, second := s.net.Machines[0], s.net.Machines[1]
	if _, err := s.on(second, "down", "--leave", "--purge"); err != nil {
		t.Fatal(err)
	}
	s.serversAre(s.client, first)
	list, err := s.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("nodes after a server has left: %v, %v", list, err)
	}
	if _, err := s.on(first, "down", "--leave"); err == nil || !strings.Contains(err.Error(), "the only server") {
		t.Errorf("the last server leaves: %v", err)
	}
	if err := s.joinServer(second); err != nil {
		t.Fatal(err)
	}
	s.serversAre(s.client, first, second)

	s.kill(second)
	s.eventually("the loss of a majority", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := s.client.CoreV1().ConfigMaps("default").Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "2 of its 2 servers are needed, and these do not answer: "+second.Name) {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	members, err := s.members(first)
	if err != nil || len(members) != 2 || members[1].Answers {
		t.Errorf("%+v, %v", members, err)
	}
	s.up(second)
	s.eventually("writes with a majority", func() error {
		_, err := s.client.CoreV1().ConfigMaps("default").Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
		return err
	})

	// The second one loses its data: it must not begin anew, nor vote with what it does not remember.
	if _, err := s.on(second, "down"); err != nil {
		t.Fatal(err)
	}
	for _, lost := range []string{"etcd/member-data", "etcd"} {
		if err := os.RemoveAll(filepath.Join(second.Data, lost)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.on(second, "up", "--node-name", second.Name); err == nil || !strings.Contains(err.Error(), "give --join-server") {
			t.Errorf("a server without %s starts: %v", lost, err)
		}
	}
}

// Whoever cannot be a server is told why, and gets no keys.
func TestWhoCannotBeAServer(t *testing.T) {
	t.Parallel()
	s := newSeveral(t, 2, 0)
	s.serve()
	first, m := s.net.Machines[0], s.net.Machines[1]
	refused := func(want string, args ...string) {
		t.Helper()
		_, err := s.on(m, append([]string{"up", "--detach", "--node-name", m.Name}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("up %v: %v, want %q", args, err, want)
		}
		if _, err := os.Stat(filepath.Join(m.Data, "pki", "ca.key")); err == nil {
			t.Errorf("up %v got the keys", args)
		}
	}
	good := s.serverToken()
	parts := strings.Split(good, ".")
	proof := parts[3]
	refused("--token is needed", "--join-server", first.Server())
	refused("it is one for nodes", "--join-server", first.Server(), "--token", s.token)
	refused("somebody is in between", "--join-server", first.Server(), "--token", strings.Join([]string{parts[0], parts[1], strings.Repeat("0", 64), proof}, "."))
	// Tokens of somebody who may write secrets, and has no keys.
	refused("not made by somebody who has the cluster's keys", "--join-server", first.Server(), "--token", strings.TrimSuffix(good, proof)+strings.Repeat("0", 64))
	refused("cannot post path", "--join-server", first.Server(), "--token", s.token+"."+proof)
	refused("leave out --etcd-servers", "--join-server", first.Server(), "--token", good, "--etcd-servers", "http://127.0.0.1:1")
	refused("has a node "+first.Name+" already", "--join-server", first.Server(), "--token", good, "--node-name", first.Name)
	if list, err := s.members(first); err != nil || len(list) != 1 {
		t.Errorf("the first server has members: %+v, %v", list, err)
	}
	// It has a cluster of its own.
	if _, err := s.on(m, "up", "--detach", "--node-name", m.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := s.on(m, "down"); err != nil {
		t.Fatal(err)
	}
	_, err := s.on(m, "up", "--detach", "--join-server", first.Server(), "--token", good)
	if err == nil || !strings.Contains(err.Error(), "a cluster of its own, which would be lost") {
		t.Errorf("a server with data of its own joins: %v", err)
	}
	// It has lost them, but for the keys, which are left alone.
	if err := os.RemoveAll(filepath.Join(m.Data, "etcd")); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(m.Data, "pki", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.on(m, "up", "--detach", "--node-name", m.Name, "--join-server", first.Server(), "--token", good)
	if err == nil || !strings.Contains(err.Error(), "is of another cluster than that of the other servers") {
		t.Errorf("a server with keys of its own joins: %v", err)
	}
	if after, err := os.ReadFile(filepath.Join(m.Data, "pki", "ca.key")); err != nil || !slices.Equal(key, after) {
		t.Errorf("its keys are gone: %v", err)
	}
}
