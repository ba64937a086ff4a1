package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodes "wherry.dev/test/cluster"
)

// exchange ends what runs on a machine as a service manager does, and starts another program in its place.
func (s *several) exchange(m *nodes.Machine, program string, start ...string) {
	s.t.Helper()
	pid := (&cluster{t: s.t, data: m.Data}).pid()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the end of the older program on "+m.Name, func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return fmt.Errorf("process %d is there", pid)
		}
		return nil
	})
	m.Use(program)
	if _, err := s.on(m, append(start, "--detach", "--node-name", m.Name)...); err != nil {
		s.t.Fatal(err)
	}
}

// A cluster of several servers gets a newer program, one machine after another, servers first, under load: UPGRADE_FROM is the
// older one. Requests that a client makes again succeed, nothing that was acknowledged is lost, pods run on, and what is new
// works in the end.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	older := os.Getenv("UPGRADE_FROM")
	if older == "" {
		t.Skip("set UPGRADE_FROM to the path of an older wherry: make upgrade")
	}
	s := newSeveral(t, 4, 0)
	for _, m := range s.net.Machines {
		m.Use(older)
	}
	servers, worker := s.net.Machines[:3], s.net.Machines[3]
	s.serveOn(servers)
	if err := s.join(worker); err != nil {
		t.Fatal(err)
	}
	const all = 3
	sets := s.client.AppsV1().StatefulSets("default")
	if _, err := sets.Create(t.Context(), keepers(all), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create(teller(worker))
	before := map[string]string{}
	names := []string{"on-" + worker.Name}
	for i := range all {
		names = append(names, fmt.Sprintf("keeper-%d", i))
	}
	for _, name := range names {
		before[name] = s.await(name, "ready", ready).Status.ContainerStatuses[0].ContainerID
	}
	h := newHistory()
	for _, m := range servers {
		h.clients = append(h.clients, s.clientAt(m))
	}
	for i := range 3 {
		h.done.Go(func() { h.write(t.Context(), i) })
	}
	h.done.Go(func() { h.leaders(t.Context(), "kube-controller-manager") })
	for _, m := range servers {
		began := time.Now()
		s.exchange(m, s.wherry, "up")
		t.Logf("%s has the newer program after %s", m.Name, time.Since(began).Round(time.Millisecond))
		s.whole(servers)
	}
	s.exchange(worker, s.wherry, "join")
	s.whole(servers)
	h.ended.Store(true)
	h.done.Wait()
	h.check(t)
	t.Logf("%d objects and %d services were acknowledged; %d requests had to be made again; %d terms began after a failure", len(h.acked), h.services, h.unknown, h.terms)

	for name, id := range before {
		if p := s.await(name, "ready", ready); p.Status.ContainerStatuses[0].ContainerID != id {
			t.Errorf("%s did not run on: %+v", name, p.Status.ContainerStatuses)
		}
	}
	if out, err := s.kubectl("get", "nodes", "-o", "wide"); err != nil || strings.Count(out, "Ready") != len(s.net.Machines) {
		t.Errorf("%v\n%s", err, out)
	}
	// The node that has joined can have volumes, which it could not in the first versions with several servers.
	if _, err := sets.Patch(t.Context(), "keeper", "application/merge-patch+json", []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := s.await(fmt.Sprintf("keeper-%d", all), "ready", ready); p.Spec.NodeName != worker.Name || len(s.directories(worker)) != 1 {
		t.Errorf("it is on %s, which has %v", p.Spec.NodeName, s.directories(worker))
	}
}
