package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodes "wherry.dev/test/cluster"
)

// keepers is a stateful set with a pod and a volume of its own on each machine.
func keepers(n int32) *appsv1.StatefulSet {
	label := map[string]string{"app": "keeper"}
	pod := busybox("keeper", func(p *v1.Pod) {
		p.Labels = label
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
			{LabelSelector: &metav1.LabelSelector{MatchLabels: label}, TopologyKey: v1.LabelHostname},
		}}}
	}, script("echo $HOSTNAME >> /data/log; "+loop))
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keeper"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: label}, PodManagementPolicy: appsv1.ParallelPodManagement,
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: label}, Spec: pod.Spec},
			VolumeClaimTemplates: []v1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: v1.PersistentVolumeClaimSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
					Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("16Mi")}},
				},
			}},
		},
	}
}

// directories of volumes on a machine.
func (s *several) directories(m *nodes.Machine) []string {
	s.t.Helper()
	out, err := filepath.Glob(filepath.Join(m.Data, "volumes", "pvc-*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// Claims get directories on the disks of all nodes: of servers, whichever leads, and of nodes that have joined. They outlive
// pods, nodes that are away and changes of leaders, grow, and go with their claims.
func TestVolumesOfNodes(t *testing.T) {
	t.Parallel()
	s := newServers(t, 3, 2)
	worker := s.net.Machines[2]
	if err := s.join(worker); err != nil {
		t.Fatal(err)
	}
	ctx, claims := t.Context(), s.client.CoreV1().PersistentVolumeClaims("default")
	const all = 3
	if _, err := s.client.AppsV1().StatefulSets("default").Create(ctx, keepers(all), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	on := map[string]*nodes.Machine{} // where each pod is
	for i := range all {
		name := fmt.Sprintf("keeper-%d", i)
		m := s.machine(s.await(name, "ready", ready).Spec.NodeName)
		on[name] = m
		if dirs := s.directories(m); len(dirs) != 1 {
			t.Errorf("directories on %s: %v", m.Name, dirs)
		}
	}
	if len(on) != all {
		t.Fatalf("%v", on)
	}
	logs := func(want string) {
		t.Helper()
		for name, m := range on {
			data, err := os.ReadFile(filepath.Join(s.directories(m)[0], "log"))
			if err != nil || strings.TrimSpace(string(data)) != strings.TrimSpace(strings.ReplaceAll(want, "?", name+"\n")) {
				t.Errorf("%s on %s: %q, %v", name, m.Name, data, err)
			}
		}
	}
	logs("?")

	// Pods go and come back to their data, and the claims grow.
	for name := range on {
		s.delete(name)
	}
	for name, m := range on {
		p := s.await(name, "ready again", ready)
		if p.Spec.NodeName != m.Name {
			t.Errorf("%s went from %s to %s", name, m.Name, p.Spec.NodeName)
		}
		patch := []byte(`{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
		if _, err := claims.Patch(ctx, "data-"+name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	logs("??")
	for name := range on {
		s.eventually("growth of "+name, func() error {
			c, err := claims.Get(ctx, "data-"+name, metav1.GetOptions{})
			if err == nil && c.Status.Capacity.Storage().String() != "32Mi" {
				err = errors.New(c.Status.Capacity.Storage().String())
			}
			return err
		})
	}

	// A node is away while its claim is deleted, and the server that leads is another one when it is back.
	if _, err := s.on(worker, "down"); err != nil {
		t.Fatal(err)
	}
	if err := s.client.AppsV1().StatefulSets("default").Delete(ctx, "keeper", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	zero := int64(0)
	for name := range on {
		if err := s.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if err := claims.Delete(ctx, "data-"+name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range s.net.Machines[:2] {
		s.eventually("the directory on "+m.Name, func() error {
			if dirs := s.directories(m); len(dirs) > 0 {
				return fmt.Errorf("%v", dirs)
			}
			return nil
		})
	}
	for _, m := range s.net.Machines[:2] { // whichever led
		if _, err := s.on(m, "down"); err != nil {
			t.Fatal(err)
		}
		s.up(m)
	}
	if dirs := s.directories(worker); len(dirs) != 1 {
		t.Errorf("on a node that is away: %v", dirs)
	}
	if err := s.join(worker); err != nil {
		t.Fatal(err)
	}
	s.eventually("the directory on "+worker.Name, func() error {
		if dirs := s.directories(worker); len(dirs) > 0 {
			return fmt.Errorf("%v", dirs)
		}
		return nil
	})
}
