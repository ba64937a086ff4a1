package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/clocksteps"
	nodes "wherry.dev/test/cluster"
	"wherry.dev/test/images"
	"wherry.dev/test/panics"
)

// several is a cluster of machines that a test owns.
type several struct {
	*cluster // of the first machine, which has the server
	net      *nodes.Network
	token    string
	clocks   map[string]*clocksteps.Clock // by machine; only tests that set them have them
	history  *history                     // only tests of faults have one
}

// newSeveral makes machines, the last routed of them behind a router. Nothing runs on them yet.
func newSeveral(t *testing.T, n, routed int) *several {
	t.Helper()
	return severalOf(t, wherryPath(t), n, routed)
}

// severalOf is newSeveral with another program.
func severalOf(t *testing.T, wherry string, n, routed int) *several {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests need root")
	}
	needsOwnRuntime(t)
	dir, err := os.MkdirTemp("", "wherry-e2e-") //nolint:usetesting // names of t.TempDir are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &several{cluster: &cluster{t: t, wherry: wherry}}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.net, err = nodes.New(t.Context(), dir, s.wherry, n, routed)
	if err != nil {
		t.Fatal(err)
	}
	s.data, s.run = s.net.Machines[0].Data, s.net.Machines[0].Run
	for _, m := range s.net.Machines {
		if err := os.MkdirAll(filepath.Join(m.Data, "images"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := images.SaveBusybox(filepath.Join(m.Data, "images", "busybox.tar")); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.close(dir) })
	return s
}

// close takes everything down, the server last, and looks for panics.
func (s *several) close(dir string) {
	if err := panics.None(filepath.Join(dir, "*", "data", "log", "wherry.log*")); err != nil {
		s.t.Error(err)
	}
	if s.t.Failed() {
		for _, m := range s.net.Machines {
			if log, err := os.ReadFile(filepath.Join(m.Data, "log", "wherry.log")); err == nil {
				s.t.Logf("%s:\n%s", m.Name, log[max(0, len(log)-6000):])
			}
		}
	}
	s.takeDown()
	if err := s.net.Close(); err != nil {
		s.t.Error(err)
	}
}

// takeDown takes down what runs on the machines, if it has not been.
func (s *several) takeDown() {
	var all sync.WaitGroup
	for _, m := range s.net.Machines {
		all.Go(func() {
			if out, err := m.Wherry(context.Background(), "down", "--purge").CombinedOutput(); err != nil {
				s.t.Errorf("%s: %v: %s", m.Name, err, out)
			}
		})
	}
	all.Wait()
}

// on runs a command of Wherry on a machine.
func (s *several) on(m *nodes.Machine, args ...string) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return m.Do(ctx, args...)
}

// serve starts the server on the first machine, and makes a token.
func (s *several) serve(flags ...string) {
	s.t.Helper()
	first := s.net.Machines[0]
	if _, err := s.on(first, append([]string{"up", "--detach", "--node-name", first.Name}, flags...)...); err != nil {
		s.t.Fatal(err)
	}
	var err error
	if s.client, err = first.Client(); err != nil {
		s.t.Fatal(err)
	}
	token, err := s.on(first, "token", "create", "--ttl", "1h")
	if err != nil {
		s.t.Fatal(err)
	}
	s.token = strings.TrimSpace(token)
}

func (s *several) join(m *nodes.Machine, flags ...string) error {
	s.t.Helper()
	_, err := s.on(m, append([]string{"join", s.net.Machines[0].Server(), "--token", s.token, "--detach", "--node-name", m.Name}, flags...)...)
	return err
}

// kubectl runs kubectl where the server is.
func (s *several) kubectl(args ...string) (string, error) {
	s.t.Helper()
	return s.on(s.net.Machines[0], append([]string{"kubectl"}, args...)...)
}

// teller is a pod that tells who it is and who asks, at port 80.
func teller(m *nodes.Machine) *v1.Pod {
	return busybox("on-"+m.Name, func(p *v1.Pod) {
		p.Labels = map[string]string{"app": "teller", "on": m.Name}
		p.Spec.NodeName = m.Name
	}, script(`mkdir -p /www/cgi-bin
printf '#!/bin/sh\necho; echo '"$HOSTNAME"' $REMOTE_ADDR' > /www/cgi-bin/who; chmod +x /www/cgi-bin/who
httpd -p 80 -h /www
`+loop))
}

// asks lets a pod ask a teller, and returns the name and the address that it tells.
func (s *several) asks(pod, address string) (name, from string, err error) {
	s.t.Helper()
	ask := fmt.Sprintf(`printf 'GET /cgi-bin/who HTTP/1.0\r\n\r\n' | nc -w 5 %s 80 | tail -n 1`, address)
	out, err := s.kubectl("exec", pod, "--", "sh", "-c", ask)
	name, from, _ = strings.Cut(strings.TrimSpace(out), " ")
	from = strings.TrimPrefix(strings.Trim(from, "[]"), "::ffff:") // httpd listens for both families
	if err == nil && from == "" {
		err = fmt.Errorf("no answer from %s: %q", address, out)
	}
	return name, from, err
}

func (s *several) eventually(what string, ok func() error) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	s.t.Errorf("%s: %v", what, err)
}

// Nodes join by a token, on the same link and behind a router. Their pods reach each other with their own addresses, find
// services by name and are reached by kubectl; policies hold between them; a node that leaves takes nothing with it.
func TestNodesJoin(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"IPv4": nil,
		"two families": {
			"--cluster-cidr", "10.131.0.0/16,fd00:131::/48", "--service-cidr", "10.132.0.0/16,fd00:132::/112", "--node-ip", "192.168.77.1,fd77:77::1",
		},
	} {
		t.Run(name, func(t *testing.T) { nodesJoin(t, flags) })
	}
}

func nodesJoin(t *testing.T, flags []string) {
	s := newSeveral(t, 3, 1)
	s.serve(flags...)
	for _, m := range s.net.Machines[1:] {
		var own []string
		if len(flags) > 0 {
			own = []string{"--node-ip", m.Address + "," + m.Second}
		}
		if err := s.join(m, own...); err != nil {
			t.Fatal(err)
		}
	}
	tellers := map[string]*v1.Pod{}
	for _, m := range s.net.Machines {
		s.create(teller(m))
	}
	for _, m := range s.net.Machines {
		tellers["on-"+m.Name] = s.await("on-"+m.Name, "ready", ready)
	}
	s.eventually("kubectl exec", func() error { // once the serving certificates are there
		for pod := range tellers {
			if _, err := s.kubectl("exec", pod, "--", "true"); err != nil {
				return err
			}
		}
		return nil
	})
	for pod, asker := range tellers {
		for other, p := range tellers {
			for i, ip := range p.Status.PodIPs {
				name, from, err := s.asks(pod, ip.IP)
				if err != nil || name != other || from != asker.Status.PodIPs[i].IP {
					t.Errorf("%s (%s) asks %s at %s: %s says that it was %s, %v", pod, asker.Status.PodIPs[i].IP, other, ip.IP, name, from, err)
				}
			}
		}
		if len(asker.Status.PodIPs) != 1+min(len(flags), 1) {
			t.Errorf("%s has the addresses %v", pod, asker.Status.PodIPs)
		}
	}
	if out, err := s.on(s.net.Machines[0], "trace", "pod/on-m3"); err != nil || !strings.Contains(out, "apiserver: create pod") || !strings.Contains(out, "cri: run sandbox") {
		t.Errorf("the way of a pod to another node: %v\n%s", err, out)
	}
	s.servicesReachAll(tellers)
	s.policiesHold(tellers)
	s.largeAnswers(tellers)
	s.leaves(s.net.Machines[2])
}

// servicesReachAll checks that a service is found by name and reached from every node, at pods of all of them, and at a port
// of each node.
func (s *several) servicesReachAll(tellers map[string]*v1.Pod) {
	t := s.t
	t.Helper()
	svc, err := s.client.CoreV1().Services("default").Create(t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "tellers"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeNodePort, Selector: map[string]string{"app": "teller"},
			Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for pod := range tellers {
		s.eventually("names from "+pod, func() error {
			out, err := s.kubectl("exec", pod, "--", "nslookup", "tellers.default.svc.cluster.local")
			if err == nil && !strings.Contains(out, svc.Spec.ClusterIP) {
				err = errors.New(out)
			}
			return err
		})
		seen := map[string]bool{}
		s.eventually("the service from "+pod, func() error {
			name, _, err := s.asks(pod, svc.Spec.ClusterIP)
			seen[name] = seen[name] || err == nil
			if len(seen) < len(tellers) {
				return fmt.Errorf("answers from %v only: %w", seen, errors.Join(err))
			}
			return err
		})
	}
	for _, m := range s.net.Machines { // from the machine of the server
		ask := fmt.Sprintf(`printf 'GET /cgi-bin/who HTTP/1.0\r\n\r\n' | busybox nc -w 5 %s %d | tail -n 1`, m.Address, svc.Spec.Ports[0].NodePort)
		s.eventually("the node port of "+m.Name, func() error {
			out, err := s.net.Machines[0].Command(t.Context(), "sh", "-c", ask).CombinedOutput()
			if err == nil && !strings.HasPrefix(string(out), "on-") {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}
}

// policiesHold checks that a policy of one pod lets pods of other nodes in by their labels, and no others.
func (s *several) policiesHold(tellers map[string]*v1.Pod) {
	t := s.t
	t.Helper()
	_, err := s.client.NetworkingV1().NetworkPolicies("default").Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"on": "m1"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"on": "m3"}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	closed := tellers["on-m1"].Status.PodIP
	s.eventually("a policy between nodes", func() error {
		if _, _, err := s.asks("on-m2", closed); err == nil {
			return errors.New("m2 gets an answer")
		}
		_, _, err := s.asks("on-m3", closed)
		return err
	})
	if err := s.client.NetworkingV1().NetworkPolicies("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// largeAnswers sends more than a packet through the tunnel, and over a path whose packets are smaller than the links say.
func (s *several) largeAnswers(tellers map[string]*v1.Pod) {
	t := s.t
	t.Helper()
	const size = 200_000
	if _, err := s.kubectl("exec", "on-m1", "--", "sh", "-c", fmt.Sprintf("head -c %d /dev/zero > /www/large", size)); err != nil {
		t.Fatal(err)
	}
	get := fmt.Sprintf(`printf 'GET /large HTTP/1.0\r\n\r\n' | nc -w 10 %s 80 | wc -c`, tellers["on-m1"].Status.PodIP)
	for _, mtu := range []int{1500, 1300} {
		for _, link := range []string{"eth0", "far"} {
			if err := s.net.RouterIP(t.Context(), fmt.Sprintf("link set %s mtu %d", link, mtu)); err != nil {
				t.Fatal(err)
			}
		}
		s.eventually(fmt.Sprintf("a large answer with packets of %d", mtu), func() error {
			out, err := s.kubectl("exec", "on-m3", "--", "sh", "-c", get)
			var got int
			if _, serr := fmt.Sscan(out, &got); serr == nil && got < size {
				err = errors.Join(err, fmt.Errorf("%d bytes of %d", got, size))
			}
			return err
		})
	}
}

// leaves takes a node out of the cluster: its pods end, the others have no way to it any more, and nothing is left on it.
func (s *several) leaves(m *nodes.Machine) {
	t := s.t
	t.Helper()
	n, err := s.client.CoreV1().Nodes().Get(t.Context(), m.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.on(m, "down", "--drain", "--leave", "--purge"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CoreV1().Nodes().Get(t.Context(), m.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node that left: %v", err)
	}
	if _, err := s.client.CoreV1().Pods("default").Get(t.Context(), "on-"+m.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its pod: %v", err)
	}
	s.eventually("the ways to a node that left", func() error {
		out, err := s.net.Machines[1].Command(t.Context(), "ip", "route").CombinedOutput()
		if err == nil && strings.Contains(string(out), n.Spec.PodCIDR) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	links, err := m.Command(t.Context(), "ip", "-o", "link").CombinedOutput()
	if err != nil || strings.Contains(string(links), "wh") {
		t.Errorf("links of the node that left: %v\n%s", err, links)
	}
	if left, err := filepath.Glob(m.Data + "*"); err != nil || len(left) > 0 {
		t.Errorf("files of the node that left: %v, %v", left, err)
	}
}

// Whoever cannot join is told why, in one line with what to do, and has nothing of the cluster afterwards.
func TestWhoCannotJoin(t *testing.T) {
	t.Parallel()
	s := newSeveral(t, 3, 0)
	m := s.net.Machines[1]
	refused := func(want string, args ...string) {
		t.Helper()
		_, err := s.on(m, append([]string{"join"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(strings.TrimSpace(err.Error()), "\n") > 1 {
			t.Errorf("join %v: %v, want %q", args, err, want)
		}
		for _, f := range []string{"instance.json", "pki/node.kubeconfig", "pki/join.kubeconfig"} {
			if _, err := os.Stat(filepath.Join(m.Data, f)); f != "instance.json" && err == nil {
				t.Errorf("join %v left %s", args, f)
			}
		}
	}
	first := s.net.Machines[0]
	refused("which server?", "--token", "abcdef.0123456789abcdef."+strings.Repeat("0", 64))
	refused("does not answer", first.Server(), "--token", "abcdef.0123456789abcdef."+strings.Repeat("0", 64))
	s.serve("--role", "server")
	id, rest, _ := strings.Cut(s.token, ".")
	secret, hash, _ := strings.Cut(rest, ".")
	refused("--token is needed", first.Server())
	refused("not the URL", "http://192.168.77.1", "--token", s.token)
	refused("lacks the hash", first.Server(), "--token", id+"."+secret)
	refused("does not know the token", first.Server(), "--token", "zzzzzz."+secret+"."+hash)
	refused("somebody is in between", first.Server(), "--token", id+"."+secret+"."+strings.Repeat("0", 64))
	short, err := s.on(first, "token", "create", "--ttl", "1s")
	if err != nil {
		t.Fatal(err)
	}
	s.eventually("the end of a token", func() error {
		_, err := s.client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+short[:6], metav1.GetOptions{})
		if err == nil {
			return errors.New("it is still there")
		}
		return nil
	})
	refused("does not know the token", first.Server(), "--token", strings.TrimSpace(short))

	if err := s.join(m, "--node-name", "same"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.on(s.net.Machines[2], "join", first.Server(), "--token", s.token, "--node-name", "same"); err == nil || !strings.Contains(err.Error(), "has a node same already") {
		t.Errorf("a name that is taken: %v", err)
	}
	kubelet := fmt.Sprintf("https://%s:10250", m.Address)
	if _, err := s.on(s.net.Machines[2], "join", kubelet, "--token", s.token); err == nil || !strings.Contains(err.Error(), "not as an API server") {
		t.Errorf("a server that is none: %v", err)
	}
	if _, err := s.on(m, "up"); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("up where a node runs: %v", err)
	}
	if _, err := s.on(m, "kubectl", "get", "pods"); err == nil || !strings.Contains(err.Error(), "has joined somebody else's server") {
		t.Errorf("kubectl where a node has joined: %v", err)
	}
	if _, err := s.on(m, "down"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.on(m, "up"); err == nil || !strings.Contains(err.Error(), "has joined") {
		t.Errorf("up where a node has joined: %v", err)
	}
	if _, err := s.on(m, "join", first.Server(), "--token", id+"."+secret+"."+strings.Repeat("0", 64)); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("a node of one cluster joins another: %v", err)
	}
	if _, err := s.on(first, "down", "--leave"); err == nil || !strings.Contains(err.Error(), "the only server") {
		t.Errorf("a server leaves: %v", err)
	}
}

// A node that is cut off, without a word on any connection, becomes NotReady, and is Ready again as soon as it is heard of; its
// pods are what they were.
func TestANodeThatIsCutOff(t *testing.T) {
	t.Parallel()
	s := newSeveral(t, 2, 0)
	s.serve("--controller-manager-arg", "node-monitor-grace-period=12s") // nodes renew their leases every ten
	m := s.net.Machines[1]
	if err := s.join(m); err != nil {
		t.Fatal(err)
	}
	s.create(teller(m))
	before := s.await("on-"+m.Name, "ready", ready)
	is := func(what string, want v1.ConditionStatus) {
		t.Helper()
		s.eventually(what, func() error {
			n, err := s.client.CoreV1().Nodes().Get(t.Context(), m.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady }); n.Status.Conditions[i].Status != want {
				return fmt.Errorf("%+v", n.Status.Conditions[i])
			}
			return nil
		})
	}
	heal, err := cutOff(s, m)
	if err != nil {
		t.Fatal(err)
	}
	is("a node that is cut off", v1.ConditionUnknown)
	if err := heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	is("a node that is back", v1.ConditionTrue)
	if took := time.Since(healed); took > 2*time.Minute { // the next heartbeat comes after five
		t.Errorf("it was Ready only after %s", took)
	}
	s.eventually("the pod of a node that was cut off", func() error {
		after, err := s.client.CoreV1().Pods("default").Get(t.Context(), before.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if after.UID != before.UID || after.Status.PodIP != before.Status.PodIP || after.Status.ContainerStatuses[0].RestartCount != 0 || !ready(after) {
			return fmt.Errorf("it was %+v, and is %+v", before.Status, after.Status)
		}
		return nil
	})
}

// A server without a node has pods on those that join. They run on while the server, or the node's own process, is away,
// and a node that starts in the meantime finds them.
func TestNodesOfAServerThatIsAway(t *testing.T) {
	t.Parallel()
	s := newSeveral(t, 2, 0)
	s.serve("--role", "server")
	first, m := s.net.Machines[0], s.net.Machines[1]
	if err := s.join(m); err != nil {
		t.Fatal(err)
	}
	all, err := s.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 || all.Items[0].Name != m.Name {
		t.Fatalf("nodes: %v, %v", all, err)
	}
	s.create(teller(m))
	before := s.await("on-"+m.Name, "ready", ready)
	s.eventually("names on a node of a server without one", func() error {
		out, err := s.kubectl("exec", before.Name, "--", "nslookup", "kubernetes.default.svc.cluster.local")
		if err == nil && !strings.Contains(out, "10.96.0.1") {
			err = errors.New(out)
		}
		return err
	})
	s.kill(first)
	s.kill(m)
	joined := make(chan error, 1)
	go func() {
		_, err := s.on(m, "join", "--detach", "--node-name", m.Name) // it knows its server
		joined <- err
	}()
	s.eventually("the kubelet of a node whose server is away", func() error {
		conn, err := m.Dial(t.Context(), "tcp", "127.0.0.1:10250")
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	ask := fmt.Sprintf(`printf 'GET /cgi-bin/who HTTP/1.0\r\n\r\n' | busybox nc -w 5 %s 80 | tail -n 1`, before.Status.PodIP)
	if out, err := m.Command(t.Context(), "sh", "-c", ask).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), before.Name) {
		t.Errorf("the pod, while nobody is there: %q, %v", out, err)
	}
	select {
	case err := <-joined:
		t.Errorf("a node says that it is Ready while its server is away: %v", err)
	default:
	}
	s.serve("--role", "server")
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	after := s.await(before.Name, "ready again", func(p *v1.Pod) bool { return ready(p) })
	if after.UID != before.UID || after.Status.PodIP != before.Status.PodIP || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod was %v %s, and is %v %s with %d restarts", before.UID, before.Status.PodIP, after.UID, after.Status.PodIP, after.Status.ContainerStatuses[0].RestartCount)
	}
	nodesNow, err := s.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || !slices.ContainsFunc(nodesNow.Items, func(n v1.Node) bool { return n.Name == m.Name }) {
		t.Errorf("%v, %v", nodesNow, err)
	}
}
