// Package host checks whether a machine is what the kubelet's configuration asks for, and sets up
// the process of a kubelet.
package host

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/metrics"
)

// Check returns an error for a machine that the configuration rules out, and logs which parts of the
// configuration have no effect.
func Check(log klog.Logger, cfg *config.Config) error {
	warnings, err := cfg.Warnings()
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Info("Warning: " + w)
	}
	if ptr.Deref(cfg.FailSwapOn, true) {
		swaps, err := os.ReadFile("/proc/swaps")
		if err != nil && !os.IsNotExist(err) { // a kernel without swap has no such file
			return err
		}
		if on := swapDevices(string(swaps)); len(on) > 0 {
			return fmt.Errorf("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false: %s", strings.Join(on, ", "))
		}
	}
	if cfg.ProtectKernelDefaults {
		if err := checkKernel("/proc/sys"); err != nil {
			return err
		}
	}
	mode, err := cgroup.Version()
	if err != nil {
		return err
	}
	metrics.CgroupVersion.Set(1)
	if mode == cgroup.V2 {
		metrics.CgroupVersion.Set(2)
		return nil
	}
	if ptr.Deref(cfg.FailCgroupV1, false) {
		return errors.New("kubelet is configured to not run on a host using cgroup v1; use cgroup v2, or set failCgroupV1 (--fail-cgroupv1) to false")
	}
	if !ptr.Deref(cfg.SingleProcessOOMKill, true) {
		return errors.New("invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1")
	}
	log.Info("Warning: the host uses cgroup v1, so there is no swap for pods, no pressure statistics and no memory QoS")
	return nil
}

// swapDevices parses /proc/swaps, whose first line is a heading.
func swapDevices(table string) []string {
	var on []string
	lines := strings.Split(strings.TrimSpace(table), "\n")
	for _, line := range lines[min(1, len(lines)):] {
		if f := strings.Fields(line); len(f) > 0 {
			on = append(on, f[0])
		}
	}
	return on
}

// kernelDefaults are the kernel settings that upstream wants. Upstream writes them itself unless
// told not to; we never do.
var kernelDefaults = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// checkKernel returns an error for a kernel that was not set up accordingly
// (protectKernelDefaults).
func checkKernel(sysctls string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(kernelDefaults)) {
		data, err := os.ReadFile(filepath.Join(sysctls, name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if have, want := strings.TrimSpace(string(data)), kernelDefaults[name]; have != want {
			errs = append(errs, fmt.Errorf("invalid kernel flag: %s, expected value: %s, actual value: %s", name, want, have))
		}
	}
	return errors.Join(errs...)
}

// AppArmor reports whether the kernel enforces AppArmor profiles.
func AppArmor() bool {
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(on), "Y")
}
