package v2

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	kubeletconfig "wherry.dev/internal/kubelet/config"
)

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

// swap sets how pods use swap.
func swap(behavior string) func(*kubeletconfig.Config) {
	return func(cfg *kubeletconfig.Config) { cfg.MemorySwap.SwapBehavior = behavior }
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
	rt, _ := node(t, swap("LimitedSwap"),
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
	rt, _ := node(t, swap("NoSwap"), pod("burstable", "128Mi", "132Mi", "trap : TERM; while :; do sleep 1000; done"), parent)
	if st := await(t, rt, "parent", runtimeapi.ContainerState_CONTAINER_EXITED); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("exit %d %s", st.ExitCode, st.Reason)
	}
	if got := swapMax(t, rt, "burstable"); got != "0" {
		t.Errorf("memory.swap.max is %s", got)
	}
}
