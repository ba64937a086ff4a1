package host

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/config"
)

// SetUpProcess applies oomScoreAdj and maxOpenFiles to this process. What it may not set, for lack
// of CAP_SYS_RESOURCE, it logs and leaves as it is, as upstream does.
//
// Only for a process that is the kubelet and nothing else. `wherry up` does not call it: the
// monitors and containers that the runtime starts there inherit both, so a pod would get other
// limits than on any other node, and the API server a protection that nobody asked for. Users who
// want them there set them where the process is started (systemd's
// OOMScoreAdjust= and LimitNOFILE=).
func SetUpProcess(log klog.Logger, c *config.Config) {
	if c.OOMScoreAdj != nil {
		if err := setOOMScoreAdj(*c.OOMScoreAdj); err != nil {
			log.Info("Failed to apply oomScoreAdj (--oom-score-adj)", "err", err)
		}
	}
	most := uint64(c.MaxOpenFiles)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		log.Error(err, "Failed to set rlimit on max file handles (maxOpenFiles, --max-open-files)", "maxOpenFiles", most)
	}
}

// setOOMScoreAdj sets how soon the kernel kills this process when memory runs out: the lower the
// value, the later.
func setOOMScoreAdj(value int32) error {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(int(value)))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", value, err)
	}
	return nil
}
