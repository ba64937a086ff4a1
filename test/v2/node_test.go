package v2

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/kubelet"
	kubeletconfig "wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/mount"
	"wherry.dev/test/images"
)

// patience covers a machine that QEMU emulates.
const patience = 4 * time.Minute

// pod returns a pod that uses the host's network and has no token: there is no API server.
func pod(name, request, limit, script string) *v1.Pod {
	res := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	for list, q := range map[*v1.ResourceList]string{&res.Requests: request, &res.Limits: limit} {
		if q != "" {
			(*list)[v1.ResourceMemory], (*list)[v1.ResourceCPU] = resource.MustParse(q), resource.MustParse("500m")
		}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name + "-uid")},
		Spec: v1.PodSpec{
			NodeName: "n1", HostNetwork: true, AutomountServiceAccountToken: new(false), RestartPolicy: v1.RestartPolicyNever,
			DNSPolicy: v1.DNSDefault, TerminationGracePeriodSeconds: new(int64), SecurityContext: &v1.PodSecurityContext{},
			Containers: []v1.Container{{
				Name: "c", Image: "busybox:latest", ImagePullPolicy: v1.PullNever, Command: []string{"sh", "-c", script}, Resources: res,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
			}},
		},
	}
}

// node runs a kubelet on our runtime for these pods, and returns the runtime and the kubelet's API server.
func node(t *testing.T, configure func(*kubeletconfig.Config), pods ...*v1.Pod) (internalapi.RuntimeService, kubernetes.Interface) {
	t.Helper()
	dir := t.TempDir()
	archive := filepath.Join(dir, "busybox.tar")
	if err := images.SaveBusybox(archive); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("v%05x", os.Getpid()&0xfffff)
	cfg := cri.Config{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "run"), Socket: filepath.Join(dir, "cri.sock"),
		InstanceID: id, PodCIDR: netip.MustParsePrefix("10.99.0.0/24"),
	}
	if err := mount.Tmpfs(cfg.State, 0o711, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountUnder(dir); err != nil {
			t.Error(err)
		}
	})
	store, err := image.Open(filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Import(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	server, err := cri.New(t.Context(), cfg, store)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "runtime", server.Run)
	client := startKubelet(t, dir, id, configure, server, pods)
	// This runs before both end: what a failure has left running is removed, too.
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		list, err := server.Runtime().ListPodSandbox(ctx, nil)
		if err != nil {
			t.Error(err)
		}
		for _, sb := range list {
			if err := server.Runtime().RemovePodSandbox(ctx, sb.Id); err != nil {
				t.Error(err)
			}
		}
	})
	return server.Runtime(), client
}

func startKubelet(t *testing.T, dir, id string, configure func(*kubeletconfig.Config), server *cri.Server, pods []*v1.Pod) kubernetes.Interface {
	t.Helper()
	groups, err := cgroup.System()
	if err != nil {
		t.Fatal(err)
	}
	cfg := kubeletconfig.Default()
	cfg.NodeName, cfg.NodeIP, cfg.RootDir = "n1", "127.0.0.1", filepath.Join(dir, "kubelet")
	cfg.PodLogsDir, cfg.ContainerLogsDir, cfg.CgroupRoot = filepath.Join(dir, "logs"), "", "/wherry-"+id+"-pods"
	cfg.EnableServer, cfg.HealthzPort, cfg.ResolverConfig, cfg.FailSwapOn = new(false), new(int32), new(""), new(false)
	configure(&cfg)
	t.Cleanup(func() {
		if err := cgroup.Remove(cfg.CgroupRoot); err != nil {
			t.Error(err)
		}
	})
	var objs []runtime.Object
	for _, p := range pods {
		objs = append(objs, p)
	}
	client := fake.NewClientset(objs...)
	k, err := kubelet.New(cfg, kubelet.Deps{Client: client, Runtime: server.Runtime(), Images: server.Images(), Cgroups: groups})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "kubelet", k.Run)
	return client
}

// run runs a component until the test ends.
func run(t *testing.T, what string, component func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- component(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
}

// await waits until a pod's container is in a state, and returns its status. It polls, because the
// runtime's events go to the kubelet alone.
func await(t *testing.T, rt internalapi.RuntimeService, pod string, state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		list, err := rt.ListContainers(t.Context(), &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": pod}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.State != state {
				continue
			}
			resp, err := rt.ContainerStatus(t.Context(), c.Id, false)
			if err != nil {
				t.Fatal(err)
			}
			return resp.Status
		}
	}
	t.Fatalf("container of pod %s is not in state %s", pod, state)
	return nil
}
