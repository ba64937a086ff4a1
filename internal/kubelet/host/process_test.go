package host

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/config"
)

// TestProcessIsSetUp plays the kubelet in a process of its own: what is set cannot be undone
// without CAP_SYS_RESOURCE.
func TestProcessIsSetUp(t *testing.T) {
	if os.Getenv("WHERRY_TEST_PROCESS") != "" {
		cfg := config.Default()
		cfg.OOMScoreAdj, cfg.MaxOpenFiles = new(int32(987)), 321
		SetUpProcess(klog.Background(), &cfg)
		cfg.OOMScoreAdj, cfg.MaxOpenFiles = new(int32(5000)), 1<<62 // the kernel refuses both, and they stay as they are
		SetUpProcess(klog.Background(), &cfg)
		score, err := os.ReadFile("/proc/self/oom_score_adj")
		var l unix.Rlimit
		if err == nil {
			err = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
		}
		fmt.Printf("have %s %d %d %v\n", strings.TrimSpace(string(score)), l.Cur, l.Max, err)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcessIsSetUp$")
	cmd.Env = append(os.Environ(), "WHERRY_TEST_PROCESS=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "have 987 321 321 <nil>\n") {
		t.Errorf("%v: %s", err, out)
	}
	for _, told := range []string{"oomScoreAdj", "maxOpenFiles"} {
		if !strings.Contains(string(out), told) {
			t.Errorf("nothing is told of %s: %s", told, out)
		}
	}
}
