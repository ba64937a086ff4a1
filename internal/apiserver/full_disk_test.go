package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/test/disks"
)

// diskOf mounts a disk of its own for a server.
func diskOf(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size="+size)
	return dir
}

// fill fills the disk.
func fill(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "hog")
	if err := disks.Fill(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func makeMap(t *testing.T, c kubernetes.Interface, name string, size int) error {
	t.Helper()
	_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"x": strings.Repeat("x", size)},
	}, metav1.CreateOptions{})
	return err
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if apierrors.ReasonForError(err) != storage.ReasonInsufficientStorage || !strings.Contains(err.Error(), "is full") {
		t.Errorf("%s on a full disk: %v", what, err)
	}
}

func TestFullDiskStillTakesDeletionsAndStatuses(t *testing.T) {
	dir := diskOf(t, "256m")
	s := startIn(t, dir)
	c := admin(t, s)
	ctx := t.Context()
	for i := range 40 {
		if err := makeMap(t, c, fmt.Sprintf("m-%d", i), 100<<10); err != nil {
			t.Fatal(err)
		}
	}
	node, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "kept", Finalizers: []string{"example.com/mine"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hog := fill(t, dir)

	wantRefused(t, "create", makeMap(t, c, "more", 1))
	kept.Data = map[string]string{"a": "b"}
	_, err = c.CoreV1().ConfigMaps("default").Update(ctx, kept, metav1.UpdateOptions{})
	wantRefused(t, "update", err)
	if _, err := c.CoreV1().ConfigMaps("default").Get(ctx, "m-0", metav1.GetOptions{}); err != nil {
		t.Errorf("get: %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "default"}}
	if _, err := c.CoordinationV1().Leases("default").Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		t.Errorf("lease: %v", err)
	}
	// A day of heartbeats, and the deletion of everything.
	for i := range 1500 {
		node.Status.NodeInfo.KernelVersion = fmt.Sprint(i)
		node.ResourceVersion = ""
		if _, err := c.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("status %d: %v", i, err)
		}
	}
	for i := range 40 {
		if err := c.CoreV1().ConfigMaps("default").Delete(ctx, fmt.Sprintf("m-%d", i), metav1.DeleteOptions{}); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	if err := c.CoreV1().ConfigMaps("default").Delete(ctx, "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if kept, err = c.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	kept.Finalizers = nil
	if _, err := c.CoreV1().ConfigMaps("default").Update(ctx, kept, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a finalizer that goes: %v", err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if err := makeMap(t, c, "after", 1); err != nil {
		t.Errorf("with room again: %v", err)
	}
	select {
	case <-s.RestartDue():
		t.Errorf("etcd failed: %v", s.RestartReason())
	default:
	}
}

// A disk may not keep the room that it has promised. Then etcd fails, and nothing else: requests
// are answered at once, and a server that starts once there is room has everything that was
// confirmed.
func TestEtcdThatFailsEndsNothingElse(t *testing.T) {
	dir := diskOf(t, "200m")
	s, stop := run(t, dir)
	defer stop()
	c := admin(t, s)
	ctx := t.Context()
	node, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hog := fill(t, dir)
	if err := disks.TakeHeld(filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	fill(t, dir)
	confirmed := -1
	for i := 0; ; i++ {
		node.ResourceVersion = ""
		node.Status.NodeInfo.KernelVersion = fmt.Sprint(i)
		node.Status.NodeInfo.OSImage = strings.Repeat("x", 20<<10)
		if _, err = c.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			break
		}
		confirmed = i
	}
	select {
	case <-s.RestartDue():
	case <-time.After(time.Minute):
		t.Fatalf("after %d statuses: %v; etcd goes on", confirmed, err)
	}
	t.Logf("etcd took %d statuses: %v", confirmed, s.RestartReason())
	_, err = c.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "etcd has stopped") {
		t.Errorf("get: %v", err)
	}
	if err := makeMap(t, c, "more", 1); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("create: %v", err)
	}
	stop()
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	// In real life another process runs the next server. Here it gets a copy of the data, because
	// the failed server still holds its own.
	next := t.TempDir()
	if err := os.CopyFS(next, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	got, err := admin(t, startIn(t, next)).CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := got.Status.NodeInfo.KernelVersion; v != fmt.Sprint(confirmed) && v != fmt.Sprint(confirmed+1) {
		t.Errorf("status %d was confirmed, and %s is there", confirmed, v)
	}
}

// Users who may write what a full disk still permits must not be able to use up the room for it: an
// object may grow only a little, and the less room there is, the less. What does not grow is always
// accepted, and so is the status of a pod of any realistic size.
func TestFullDiskTakesNoGrowthByWhatIsPermitted(t *testing.T) {
	dir := diskOf(t, "400m")
	s := startIn(t, dir)
	c := admin(t, s)
	ctx := t.Context()
	maps := c.CoreV1().ConfigMaps("default")
	finalized := metav1.ObjectMeta{Finalizers: []string{"example.com/mine"}}
	for _, name := range []string{"going", "staying"} {
		finalized.Name = name
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: finalized, Data: map[string]string{"x": "x"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}
	for i := range 30 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "i"})
	}
	if _, err := c.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pod, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	hog := fill(t, dir)
	wantRefused(t, "create", makeMap(t, c, "more", 1))
	if err := disks.Fill(hog); err != nil {
		t.Fatal(err)
	}

	write := func(name, value string) error {
		m, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			m.Data["x"] = value
			_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		}
		return err
	}
	wantRefused(t, "much, of what is being deleted", write("going", strings.Repeat("x", 64<<10)))
	if err := write("going", strings.Repeat("x", 10<<10)); err != nil {
		t.Errorf("little, of what is being deleted: %v", err)
	}
	wantRefused(t, "little, of what stays", write("staying", "xxx"))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "large", Namespace: "default", Annotations: map[string]string{"x": strings.Repeat("x", 100<<10)},
	}}
	_, err = c.CoordinationV1().Leases("default").Create(ctx, lease, metav1.CreateOptions{})
	wantRefused(t, "a large lease", err)
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Annotations: map[string]string{"x": strings.Repeat("x", 100<<10)},
	}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	wantRefused(t, "a large binding", c.CoreV1().Pods("default").Bind(ctx, binding, metav1.CreateOptions{}))
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: "registry.example.com/some/image:v1.2.3", ImageID: "sha256:" + strings.Repeat("0", 64),
			ContainerID: "wherry://" + strings.Repeat("0", 64), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	if _, err := c.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the first status of a pod with many containers: %v", err)
	}

	// One after another, they must not use up what is kept for the node.
	var refused error
	for i := 0; refused == nil && i < 20_000; i++ {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("many-", i), Namespace: "default", Annotations: map[string]string{"x": strings.Repeat("x", 12<<10)},
		}}
		_, refused = c.CoordinationV1().Leases("default").Create(ctx, lease, metav1.CreateOptions{})
	}
	wantRefused(t, "leases without end", refused)
	kubelets := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "kube-system"}}
	if _, err := c.CoordinationV1().Leases("kube-system").Create(ctx, kubelets, metav1.CreateOptions{}); err != nil {
		t.Errorf("a lease of the system: %v", err)
	}
	if err := write("going", "x"); err != nil {
		t.Errorf("what shrinks: %v", err)
	}
	m, err := maps.Get(ctx, "going", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Finalizers = nil
	if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a finalizer that goes: %v", err)
	}
	if err := s.RestartReason(); err != nil {
		t.Errorf("etcd has failed: %v", err)
	}
}
