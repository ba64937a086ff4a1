package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	nodes "wherry.dev/test/cluster"
)

// telling makes a service of the tellers, changed as a test wants it.
func (s *several) telling(name string, change func(*v1.ServiceSpec)) *v1.Service {
	s.t.Helper()
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"app": "teller"}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}},
	}
	change(&svc.Spec)
	svc, err := s.client.CoreV1().Services("default").Create(s.t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return svc
}

// get asks from one machine, outside of the cluster's networks.
func (s *several) get(from *nodes.Machine, url string) (code int, body string, err error) {
	client := &http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}, Timeout: 3 * time.Second}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	doc, err := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(doc)), err
}

// answersOf collects who answers a pod at an address until all of want have, and some times more.
func (s *several) answersOf(what, pod, address string, want ...string) {
	s.t.Helper()
	seen := map[string]bool{}
	s.eventually(what, func() error {
		clear(seen)
		for range 12 {
			name, _, err := s.asks(pod, address)
			if err != nil {
				return err
			}
			seen[name] = true
		}
		for name := range seen {
			if !slices.Contains(want, name) {
				return fmt.Errorf("%s answers, too", name)
			}
		}
		if len(seen) < len(want) {
			return fmt.Errorf("answers from %v only", seen)
		}
		return nil
	})
}

// Traffic policies and distribution hold across nodes: what comes from outside to a node with externalTrafficPolicy Local stays
// there and keeps its source, internalTrafficPolicy Local and trafficDistribution choose by node and zone. Static pods run on
// nodes that have joined, too. A node that is out of service loses its pods, and another one has them.
func TestServicesByNode(t *testing.T) {
	t.Parallel()
	s := newSeveral(t, 4, 0)
	outside := s.net.Machines[3] // has nothing of the cluster
	s.net.Machines = s.net.Machines[:3]
	defer func() { s.net.Machines = append(s.net.Machines, outside) }()
	first, second, third := s.net.Machines[0], s.net.Machines[1], s.net.Machines[2]
	zone := func(z string) []string { return []string{"--node-labels", v1.LabelTopologyZone + "=" + z} }
	s.serve(append(zone("a"), "--controller-manager-arg", "node-monitor-grace-period=12s")...)
	for m, z := range map[*nodes.Machine]string{second: "a", third: "b"} {
		if err := s.join(m, zone(z)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range s.net.Machines {
		s.create(teller(m))
	}
	s.create(busybox("asker", func(p *v1.Pod) { p.Spec.NodeName = third.Name }, script(loop)))
	for _, m := range s.net.Machines {
		s.await("on-"+m.Name, "ready", ready)
	}
	s.await("asker", "ready", ready)

	here := s.telling("here", func(spec *v1.ServiceSpec) {
		spec.Type, spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal
		spec.Selector["on"] = second.Name
	})
	s.eventually("a node port of the node that has the pod", func() error {
		code, body, err := s.get(outside, fmt.Sprintf("http://%s:%d/cgi-bin/who", second.Address, here.Spec.Ports[0].NodePort))
		if err == nil && (code != 200 || !strings.HasPrefix(body, "on-"+second.Name+" ") || !strings.HasSuffix(strings.Trim(body, "[]"), outside.Address)) {
			err = fmt.Errorf("%d %q", code, body)
		}
		return err
	})
	if code, body, err := s.get(outside, fmt.Sprintf("http://%s:%d/cgi-bin/who", first.Address, here.Spec.Ports[0].NodePort)); err == nil {
		t.Errorf("a node without the pod answers: %d %q", code, body)
	}
	for m, want := range map[*nodes.Machine]int{first: 503, second: 200, third: 503} {
		s.eventually("the health of a load balancer's node "+m.Name, func() error {
			code, _, err := s.get(outside, fmt.Sprintf("http://%s:%d/healthz", m.Address, here.Spec.HealthCheckNodePort))
			if err == nil && code != want {
				err = fmt.Errorf("%d, want %d", code, want)
			}
			return err
		})
	}
	s.eventually("the addresses of a balancer", func() error {
		svc, err := s.client.CoreV1().Services("default").Get(t.Context(), here.Name, metav1.GetOptions{})
		if err == nil && (len(svc.Status.LoadBalancer.Ingress) != 1 || svc.Status.LoadBalancer.Ingress[0].IP != second.Address) {
			err = fmt.Errorf("%+v", svc.Status.LoadBalancer)
		}
		return err
	})

	own := s.telling("own", func(spec *v1.ServiceSpec) { spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal) })
	inZone := s.telling("zone", func(spec *v1.ServiceSpec) {
		spec.TrafficDistribution = ptr.To(v1.ServiceTrafficDistributionPreferSameZone)
	})
	onNode := s.telling("node", func(spec *v1.ServiceSpec) {
		spec.TrafficDistribution = ptr.To(v1.ServiceTrafficDistributionPreferSameNode)
	})
	for _, m := range s.net.Machines {
		s.answersOf("the pods of its own node, from "+m.Name, "on-"+m.Name, own.Spec.ClusterIP, "on-"+m.Name)
		s.answersOf("the pods of the same node, from "+m.Name, "on-"+m.Name, onNode.Spec.ClusterIP, "on-"+m.Name)
	}
	s.answersOf("the pods of the same zone", "on-"+second.Name, inZone.Spec.ClusterIP, "on-"+first.Name, "on-"+second.Name)
	s.answersOf("the pods of another zone", "on-"+third.Name, inZone.Spec.ClusterIP, "on-"+third.Name)
	s.delete("on-" + third.Name)
	s.answersOf("other zones, if the own one has none", "asker", inZone.Spec.ClusterIP, "on-"+first.Name, "on-"+second.Name)
	if name, _, err := s.asks("asker", own.Spec.ClusterIP); err == nil {
		t.Errorf("a node without a pod of its own gets an answer from %s", name)
	}

	s.staticPods(second)
	s.outOfService(third, second)
}

// staticPods are run from a folder on a node that has joined, and shown by the API server as long as they are there.
func (s *several) staticPods(m *nodes.Machine) {
	t := s.t
	t.Helper()
	file := filepath.Join(m.Data, "manifests", "static.yaml")
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: fixed, namespace: default}\nspec:\n  containers:\n" +
		"  - {name: c, image: docker.io/library/busybox:1.36, imagePullPolicy: Never, command: [sleep, '1000']}\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(manifest), 0o600)); err != nil {
		t.Fatal(err)
	}
	if p := s.await("fixed-"+m.Name, "ready", ready); p.Spec.NodeName != m.Name || p.Annotations[v1.MirrorPodAnnotationKey] == "" {
		t.Errorf("%s on %s: %v", p.Name, p.Spec.NodeName, p.Annotations)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.await("fixed-"+m.Name, "gone", gone)
}

// outOfService takes a node down for good: the pod of a stateful set comes back elsewhere once somebody says so, and not before.
func (s *several) outOfService(m, other *nodes.Machine) {
	t := s.t
	t.Helper()
	set := keepers(1)
	spec := &set.Spec.Template.Spec
	set.Spec.VolumeClaimTemplates, spec.Containers[0].VolumeMounts, spec.Affinity = nil, nil, nil
	spec.Containers[0].Command = []string{"sleep", "1000"}
	spec.NodeSelector = map[string]string{"may": "have-it"}
	label := func(m *nodes.Machine) {
		patch := []byte(`{"metadata":{"labels":{"may":"have-it"}}}`)
		if _, err := s.client.CoreV1().Nodes().Patch(t.Context(), m.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(m)
	if _, err := s.client.AppsV1().StatefulSets("default").Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := s.await("keeper-0", "ready", ready)
	label(other)
	if _, err := s.on(m, "down"); err != nil {
		t.Fatal(err)
	}
	s.eventually("a node that is silent", func() error {
		if !tainted(s.node(m.Name), v1.TaintNodeUnreachable) && !tainted(s.node(m.Name), v1.TaintNodeNotReady) {
			return errors.New("it is not tainted")
		}
		return nil
	})
	if p, err := s.client.CoreV1().Pods("default").Get(t.Context(), "keeper-0", metav1.GetOptions{}); err != nil || p.UID != before.UID {
		t.Errorf("a pod of a silent node: %v, %v", p.UID, err)
	}
	taint := []byte(`{"spec":{"taints":[{"key":"` + v1.TaintNodeOutOfService + `","value":"nodeshutdown","effect":"NoExecute"}]}}`)
	if _, err := s.client.CoreV1().Nodes().Patch(t.Context(), m.Name, "application/strategic-merge-patch+json", taint, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod of a node out of service", func() error {
		p, err := s.client.CoreV1().Pods("default").Get(t.Context(), "keeper-0", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return err
		case err == nil && (p.Spec.NodeName != other.Name || !ready(p)):
			return fmt.Errorf("on %s: %v", p.Spec.NodeName, p.Status.Phase)
		}
		return err
	})
}
