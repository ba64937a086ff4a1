package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/oci"
)

// readHost finds out what this machine can offer containers.
func readHost() (oci.Host, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return oci.Host{}, err
	}
	var mask uint64
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			if _, err := fmt.Sscanf(v, "%x", &mask); err != nil {
				return oci.Host{}, fmt.Errorf("read capabilities: %w", err)
			}
		}
	}
	mode, err := cgroup.Version()
	if err != nil {
		return oci.Host{}, err
	}
	h := oci.Host{Capabilities: oci.CapabilityNames(mask), OOMScoreMin: -1000, CgroupV2: mode == cgroup.V2}
	// Probed with an invalid descriptor: a kernel without the call returns ENOSYS.
	h.RecursiveReadOnly = !errors.Is(unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}), unix.ENOSYS)
	h.RaisesLimits = slices.Contains(h.Capabilities, "CAP_SYS_RESOURCE")
	if !h.RaisesLimits {
		if h.OOMScoreMin, err = readIntFile("/proc/self/oom_score_adj"); err != nil {
			return h, err
		}
		klog.InfoS("No CAP_SYS_RESOURCE, containers' OOM scores cannot be lower than Wherry's own", "lowest", h.OOMScoreMin)
	}
	return h, nil
}

func readIntFile(path string) (int, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var n int
	if _, err := fmt.Sscan(string(doc), &n); err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return n, nil
}
