package stats

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

func TestCPURate(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(after, cpu time.Duration) cgroup.Stats {
		return cgroup.Stats{Time: start.Add(after), CPU: cpu}
	}
	var r CPURate
	var got []uint64
	for _, m := range []cgroup.Stats{
		at(0, time.Second),
		at(100*time.Millisecond, 2*time.Second), // too soon for a new rate
		at(2*time.Second, 2*time.Second),
		at(2100*time.Millisecond, 3*time.Second), // the last answer still holds
		at(4*time.Second, 3*time.Second),
		at(6*time.Second, time.Second), // the counter started again
		at(7*time.Second, 3*time.Second),
	} {
		got = append(got, r.Usage(m).GetUsageNanoCores().GetValue())
	}
	if diff := cmp.Diff([]uint64{0, 0, 5e8, 5e8, 5e8, 0, 2e9}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSwapAvailable(t *testing.T) {
	for _, c := range []struct {
		used uint64
		max  *uint64
		want *runtimeapi.UInt64Value
	}{{5, nil, nil}, {5, new(uint64(20)), Value(15)}, {5, new(uint64(0)), Value(0)}} {
		if got := Swap(cgroup.Stats{SwapUsage: c.used, SwapMax: c.max}); got.GetSwapAvailableBytes().GetValue() != c.want.GetValue() ||
			(got.SwapAvailableBytes == nil) != (c.want == nil) || got.SwapUsageBytes.Value != c.used {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
