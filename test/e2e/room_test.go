package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/test/disks"
	"wherry.dev/test/images"
)

// ext4Disk gives the instance a disk of its own, of the kind that machines have.
func (c *cluster) ext4Disk(size int64) {
	c.t.Helper()
	c.ownDisk(func() error { return disks.Mount(c.t.Context(), "ext4", c.data, c.t.TempDir(), size) })
}

// tenant returns a client for a user who is admin of one namespace.
func (c *cluster) tenant() kubernetes.Interface {
	c.t.Helper()
	ctx := c.t.Context()
	_, err := c.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}, metav1.CreateOptions{})
	if err == nil {
		_, err = c.client.RbacV1().RoleBindings("tenant").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "admin"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "tenant"}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.awaitRights("tenant", "tenant", "create", "configmaps")
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.data, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	cfg.QPS, cfg.Impersonate.UserName = -1, "tenant"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// A tenant cannot make anything worse of a full disk: whatever an admin of a namespace may try,
// etcd keeps working, and so does what the operator does.
func TestTenantCannotEndEtcdOnAFullDisk(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.ext4Disk(1 << 30)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("before"))
	c.create(busybox("goner"))
	before := c.await("before", "ready", ready)
	c.await("goner", "ready", ready)
	tenant := c.tenant()
	const going = 200
	for i := range going {
		size := 1 << 10
		if i == 0 {
			size = 900 << 10
		}
		makeGoing(t, tenant, i, size)
	}
	fill := filepath.Join(c.data, "fill")
	if err := disks.Fill(fill); err != nil {
		t.Fatal(err)
	}
	c.wantFull()
	if err := disks.Fill(fill); err != nil {
		t.Fatal(err)
	}
	stop := harass(t, tenant, going)
	for end := time.Now().Add(5 * attackTime(t)); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := c.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("list: %v", err)
		}
		patch := fmt.Sprintf(`{"status":{"nodeInfo":{"osImage":"%d"}}}`, time.Now().UnixNano())
		_, err := c.client.CoreV1().Nodes().Patch(t.Context(), c.flags[1], types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Errorf("status: %v", err)
		}
	}
	c.delete("goner")
	c.exec("before", "true")
	for what, n := range stop() {
		t.Logf("%d times %s", n, what)
		if strings.Contains(what, "etcd has stopped") {
			t.Error("etcd has failed")
		}
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); c.tryCreate() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no room is found again: %v", c.tryCreate())
		}
	}
	now := c.get("before").Status.ContainerStatuses[0]
	if was := before.Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID || now.RestartCount != 0 {
		t.Errorf("was %s, is %+v", was.ContainerID, now)
	}
}

// makeGoing makes an object that is being deleted but has a finalizer.
func makeGoing(t *testing.T, tenant kubernetes.Interface, i, size int) {
	t.Helper()
	maps, name := tenant.CoreV1().ConfigMaps("tenant"), fmt.Sprint("going-", i)
	_, err := maps.Create(t.Context(), &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/mine"}}, Data: map[string]string{"x": text(size)},
	}, metav1.CreateOptions{})
	if err == nil {
		err = maps.Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func text(size int) string {
	return strings.Repeat(string(rune('a'+rand.IntN(26))), size) //nolint:gosec // any letter
}

// harass tries everything that a tenant may do, from many sides, until stop is called, which
// returns how often each answer came.
func harass(t *testing.T, tenant kubernetes.Interface, going int) (stop func() map[string]int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	core, mine := tenant.CoreV1(), metav1.ObjectMeta{GenerateName: "more-"}
	pick := func() string { return fmt.Sprint("going-", 1+rand.IntN(going-1)) } //nolint:gosec // any
	tries := map[string]func() error{
		"growth": func() error {
			patch := fmt.Sprintf(`{"data":{"%d":"%s"}}`, rand.IntN(1000), text(rand.IntN(20<<10))) //nolint:gosec // any
			_, err := core.ConfigMaps("tenant").Patch(ctx, pick(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		},
		"churn": func() error {
			patch := fmt.Sprintf(`{"data":{"x":"%s"}}`, text(900<<10))
			_, err := core.ConfigMaps("tenant").Patch(ctx, "going-0", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		},
		"managers": func() error {
			patch := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","data":{"%d":"x"}}`, rand.IntN(1000)) //nolint:gosec // any
			_, err := core.ConfigMaps("tenant").Patch(ctx, pick(), types.ApplyPatchType, []byte(patch),
				metav1.PatchOptions{FieldManager: text(1 + rand.IntN(100)), Force: new(true)}) //nolint:gosec // any
			return err
		},
		"maps": func() error {
			_, err := core.ConfigMaps("tenant").Create(ctx, &v1.ConfigMap{ObjectMeta: mine, Data: map[string]string{"x": text(900 << 10)}}, metav1.CreateOptions{})
			return err
		},
		"leases": func() error {
			m := mine
			m.Annotations = map[string]string{"x": text(rand.IntN(16 << 10))} //nolint:gosec // any
			_, err := tenant.CoordinationV1().Leases("tenant").Create(ctx, &coordinationv1.Lease{ObjectMeta: m}, metav1.CreateOptions{})
			return err
		},
		"events": func() error {
			_, err := core.Events("tenant").Create(ctx, &v1.Event{ObjectMeta: mine, InvolvedObject: v1.ObjectReference{Namespace: "tenant"}}, metav1.CreateOptions{})
			return err
		},
		"tokens": func() error {
			_, err := core.ServiceAccounts("tenant").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		},
		"evictions": func() error {
			return core.Pods("tenant").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{
				Name: "none", Annotations: map[string]string{"x": text(200 << 10)},
			}})
		},
		"bindings": func() error {
			return core.Pods("tenant").Bind(ctx, &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Target: v1.ObjectReference{Name: "n"}}, metav1.CreateOptions{})
		},
		"deletions": func() error {
			return core.ConfigMaps("tenant").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := map[string]int{}
	for name, try := range tries {
		for range 3 {
			all.Go(func() {
				for ctx.Err() == nil {
					answer := name + ": done"
					if err := try(); errors.Is(err, context.Canceled) {
						return
					} else if err != nil {
						answer = name + ": " + string(apierrors.ReasonForError(err))
						if strings.Contains(err.Error(), "etcd has stopped") {
							answer += ", etcd has stopped"
						}
					}
					mu.Lock()
					answers[answer]++
					mu.Unlock()
				}
			})
		}
	}
	return func() map[string]int {
		cancel()
		all.Wait()
		return answers
	}
}
