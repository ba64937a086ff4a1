package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	nodes "wherry.dev/test/cluster"
)

const (
	cloudAddress  = "203.0.113.10" // of its load balancers
	uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	shutDown      = "node.cloudprovider.kubernetes.io/shutdown"
)

// cloud is a cloud for a test, which is a file, and its controller manager (test/cloud).
type cloud struct {
	t    *testing.T
	file string
	has  map[string]map[string]any
}

func newCloud(t *testing.T, machines ...*nodes.Machine) *cloud {
	t.Helper()
	c := &cloud{t: t, file: filepath.Join(t.TempDir(), "cloud.json"), has: map[string]map[string]any{}}
	for i, m := range machines {
		c.has[m.Name] = map[string]any{
			"type": "large", "zone": fmt.Sprintf("east-%d", i), "region": "east",
			"addresses": []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: m.Address}, {Type: v1.NodeHostName, Address: m.Name}},
		}
	}
	c.write()
	return c
}

func (c *cloud) write() {
	c.t.Helper()
	doc, err := json.Marshal(map[string]any{"balancer": cloudAddress, "instances": c.has})
	if err == nil {
		err = os.WriteFile(c.file+".new", doc, 0o600)
	}
	if err = errors.Join(err, os.Rename(c.file+".new", c.file)); err != nil {
		c.t.Fatal(err)
	}
}

// manage runs its controller manager on a machine until the test ends.
func (c *cloud) manage(m *nodes.Machine) {
	c.t.Helper()
	program := filepath.Join(c.t.TempDir(), "cloud")
	compile(c.t, ".", "-ldflags=-s -w", "-o", program, "wherry.dev/test/cloud")
	kubeconfig := filepath.Join(m.Data, "kubeconfig")
	run := m.Command(c.t.Context(), program, "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--cloud-config", c.file, "--leader-elect=false", "--node-monitor-period=1s", "--secure-port=10258", "--bind-address=127.0.0.1",
		"--cert-dir", c.t.TempDir())
	var log bytes.Buffer
	run.Stdout, run.Stderr = &log, &log
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan string, 1)
	go func() {
		// Pdeathsig is sent when the thread that started it ends, and threads that were in another namespace do.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := run.Start()
		started <- err
		if err == nil {
			ended <- fmt.Sprint(run.Wait())
		}
	}()
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		select {
		case how := <-ended:
			c.t.Errorf("the cloud's controller manager ended by itself: %s", how)
		default:
			_ = run.Process.Kill() // it may end just now
			<-ended
		}
		if c.t.Failed() {
			c.t.Logf("the cloud's controller manager:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
	})
}

func (s *several) node(name string) *v1.Node {
	s.t.Helper()
	n, err := s.client.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func tainted(n *v1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == key })
}

// Nodes of a cloud wait for its controller manager, which says what they are; those that have joined, too. It balances
// services, and Wherry does not; and tells of machines that are switched off or gone.
func TestNodesOfACloud(t *testing.T) {
	t.Parallel()
	s := newSeveral(t, 2, 0)
	first, second := s.net.Machines[0], s.net.Machines[1]
	s.serve("--cloud-provider", "external", "--controller-manager-arg", "node-monitor-grace-period=5s")
	if err := s.join(second); err != nil {
		t.Fatal(err)
	}
	for _, m := range s.net.Machines {
		n := s.node(m.Name)
		internal := slices.ContainsFunc(n.Status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP })
		if !tainted(n, uninitialized) || internal || n.Spec.ProviderID != "" {
			t.Errorf("%s before the cloud has seen it: %v, %v, %q", m.Name, n.Spec.Taints, n.Status.Addresses, n.Spec.ProviderID)
		}
	}
	pod := teller(second)
	pod.Spec.NodeName, pod.Spec.NodeSelector = "", map[string]string{v1.LabelHostname: second.Name}
	s.create(pod)
	s.eventually("explain", func() error {
		out, err := s.on(first, "explain", "pod/"+pod.Name)
		if err == nil && !strings.Contains(out, uninitialized) {
			err = errors.New(out)
		}
		return err
	})
	balanced, err := s.client.CoreV1().Services("default").Create(t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "balanced"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "teller"}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	c := newCloud(t, first, second)
	c.manage(first)
	for i, m := range s.net.Machines {
		s.eventually("initialization of "+m.Name, func() error {
			n := s.node(m.Name)
			zone := fmt.Sprintf("east-%d", i)
			internal := slices.Contains(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: m.Address})
			if tainted(n, uninitialized) || !internal || n.Spec.ProviderID != "paper://"+zone+"/"+m.Name || n.Labels[v1.LabelTopologyZone] != zone ||
				n.Labels[v1.LabelTopologyRegion] != "east" || n.Labels[v1.LabelInstanceTypeStable] != "large" {
				return fmt.Errorf("%v, %v, %q, %v", n.Spec.Taints, n.Status.Addresses, n.Spec.ProviderID, n.Labels)
			}
			return nil
		})
	}
	s.await(pod.Name, "ready", ready)
	s.create(teller(first))
	s.await("on-"+first.Name, "ready", ready)
	s.eventually("kubectl exec", func() error { // the serving certificate has the cloud's addresses
		_, err := s.kubectl("exec", pod.Name, "--", "true")
		return err
	})
	s.eventually("the load balancer", func() error {
		svc, err := s.client.CoreV1().Services("default").Get(t.Context(), balanced.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if in := svc.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != cloudAddress {
			return fmt.Errorf("%+v", in)
		}
		_, _, err = s.asks("on-"+first.Name, cloudAddress)
		return err
	})

	// The second machine is switched off, and then it is gone.
	if _, err := s.on(second, "down"); err != nil {
		t.Fatal(err)
	}
	c.has[second.Name]["off"] = true
	c.write()
	s.eventually("the taint of a machine that is off", func() error {
		if n := s.node(second.Name); !tainted(n, shutDown) {
			return fmt.Errorf("%v", n.Spec.Taints)
		}
		return nil
	})
	delete(c.has, second.Name)
	c.write()
	s.eventually("the end of a node whose machine is gone", func() error {
		_, err := s.client.CoreV1().Nodes().Get(t.Context(), second.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
}
