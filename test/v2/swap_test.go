package v2

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

const mib = 1 << 20

// meminfo returns a line of /proc/meminfo, in bytes.
func meminfo(t *testing.T, name string) int64 {
	t.Helper()
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if fields := strings.Fields(sc.Text()); len(fields) > 1 && fields[0] == name+":" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("/proc/meminfo has no %s", name)
	return 0
}

// needsSwap skips the test if there is no pure cgroup v2, or nothing to swap to.
func needsSwap(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if mode, err := cgroup.Version(); err != nil || mode != cgroup.V2 {
		t.Skipf("needs pure cgroup v2: make test-v2 (here %v, %v)", mode, err)
	}
	if meminfo(t, "SwapTotal") < 512*mib {
		t.Skip("needs 512 MiB of swap: make test-v2")
	}
}

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

// node runs a kubelet on our runtime for these pods, and returns the runtime.
func node(t *testing.T, behavior string, pods ...*v1.Pod) internalapi.RuntimeService {
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
	startKubelet(t, dir, id, behavior, server, pods)
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
	return server.Runtime()
}

func startKubelet(t *testing.T, dir, id, behavior string, server *cri.Server, pods []*v1.Pod) {
	t.Helper()
	groups, err := cgroup.System()
	if err != nil {
		t.Fatal(err)
	}
	cfg := kubeletconfig.Default()
	cfg.NodeName, cfg.NodeIP, cfg.RootDir = "n1", "127.0.0.1", filepath.Join(dir, "kubelet")
	cfg.PodLogsDir, cfg.ContainerLogsDir, cfg.CgroupRoot = filepath.Join(dir, "logs"), "", "/wherry-"+id+"-pods"
	cfg.EnableServer, cfg.HealthzPort, cfg.ResolverConfig, cfg.FailSwapOn = new(false), new(int32), new(""), new(false)
	cfg.MemorySwap.SwapBehavior = behavior
	t.Cleanup(func() {
		if err := cgroup.Remove(cfg.CgroupRoot); err != nil {
			t.Error(err)
		}
	})
	var objs []runtime.Object
	for _, p := range pods {
		objs = append(objs, p)
	}
	k, err := kubelet.New(cfg, kubelet.Deps{Client: fake.NewClientset(objs...), Runtime: server.Runtime(), Images: server.Images(), Cgroups: groups})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "kubelet", k.Run)
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

// swapMax returns how much the kernel lets a container swap out.
func swapMax(t *testing.T, rt internalapi.RuntimeService, pod string) string {
	t.Helper()
	st := await(t, rt, pod, runtimeapi.ContainerState_CONTAINER_RUNNING)
	out, errOut, err := rt.ExecSync(t.Context(), st.Id, []string{"cat", "/sys/fs/cgroup/memory.swap.max"}, patience)
	if err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	return strings.TrimSpace(string(out))
}

// TestLimitedSwap: a burstable pod gets its share of the node's swap, by KEP-2400, and others get
// none: the kernel's files say so, and a process that exceeds its limit by less than the share
// survives.
func TestLimitedSwap(t *testing.T) {
	needsSwap(t)
	share := int64(float64(128*mib) / float64(meminfo(t, "MemTotal")) * float64(meminfo(t, "SwapTotal")))
	const idle = "trap : TERM; while :; do sleep 1000; done"
	// It takes half of the share more than the limit, a MiB at a time, and slows down towards the
	// end: the emulated disk must keep up.
	grow := fmt.Sprintf(`awk 'BEGIN { for (i = 0; i < %d; i++) { s[i] = sprintf("%%1048576s", "x"); if (i > 110) system("sleep 0.1") } }'`, 132+share/2/mib)
	rt := node(t, "LimitedSwap",
		pod("burstable", "128Mi", "132Mi", idle), pod("guaranteed", "132Mi", "132Mi", idle), pod("besteffort", "", "", idle),
		pod("grows", "128Mi", "132Mi", grow), pod("outgrows", "132Mi", "132Mi", grow))
	page := int64(os.Getpagesize())
	for name, want := range map[string]int64{"burstable": share / page * page, "guaranteed": 0, "besteffort": 0} {
		if got := swapMax(t, rt, name); got != strconv.FormatInt(want, 10) {
			t.Errorf("%s: memory.swap.max is %s, want %d", name, got, want)
		}
	}
	if st := await(t, rt, "grows", runtimeapi.ContainerState_CONTAINER_EXITED); st.ExitCode != 0 {
		t.Errorf("burstable, and within its share: exit %d %s", st.ExitCode, st.Reason)
	}
	if st := await(t, rt, "outgrows", runtimeapi.ContainerState_CONTAINER_EXITED); st.ExitCode != 137 {
		t.Errorf("guaranteed, without swap: exit %d %s", st.ExitCode, st.Reason)
	}
}

func TestNoSwap(t *testing.T) {
	needsSwap(t)
	// its child outgrows the limit, and is killed together with it
	parent := pod("parent", "32Mi", "32Mi", "tail /dev/zero & wait; sleep 1000")
	rt := node(t, "NoSwap", pod("burstable", "128Mi", "132Mi", "trap : TERM; while :; do sleep 1000; done"), parent)
	if st := await(t, rt, "parent", runtimeapi.ContainerState_CONTAINER_EXITED); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("exit %d %s", st.ExitCode, st.Reason)
	}
	if got := swapMax(t, rt, "burstable"); got != "0" {
		t.Errorf("memory.swap.max is %s", got)
	}
}
