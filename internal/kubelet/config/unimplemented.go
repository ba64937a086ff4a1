package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/eviction"
)

// unimplementedFields of KubeletConfiguration are accepted, but a value other than the default
// causes a warning. The value is the flag that also sets the field, if there is one. Three fields are
// not missing: kernelMemcgNotification, because the kernel is always asked to tell when memory runs
// short, syncFrequency, because changes are seen when they happen, and
// streamingConnectionIdleTimeout, because the runtime's server closes idle streams after a time of
// its own (4h here as in containerd); upstream's kubelet does not read it either.
var unimplementedFields = map[string]string{
	"cpuManagerReconcilePeriod": "--cpu-manager-reconcile-period",
	"qosReserved":               "--qos-reserved",
	"kernelMemcgNotification":   "--kernel-memcg-notification",
	"kubeletCgroups":            "--kubelet-cgroups", "systemCgroups": "--system-cgroups",
	"streamingConnectionIdleTimeout": "--streaming-connection-idle-timeout",
	"volumePluginDir":                "--volume-plugin-dir", "enableControllerAttachDetach": "--enable-controller-attach-detach",
	"hairpinMode": "--hairpin-mode", "makeIPTablesUtilChains": "--make-iptables-util-chains",
	"iptablesMasqueradeBit": "", "iptablesDropBit": "",
	"configMapAndSecretChangeDetectionStrategy": "", "showHiddenMetricsForVersion": "",
	"syncFrequency": "--sync-frequency",
}

// The feature gates that are checked: without the first two their field is refused.
const (
	gateCFSPeriod  = "CustomCPUCFSQuotaPeriod"
	gatePodSysctls = "DefaultPodSysctls"
	gatePodsAPI    = "PodsAPI"
)

var checkedGates = []string{gateCFSPeriod, gatePodSysctls, gatePodsAPI, cpus.AlphaOptions, gated.CSIVolumeHealth}

// PodsAPI reports whether agents on the node are told of its pods, as by default.
func (c *Config) PodsAPI() bool {
	on, set := c.FeatureGates[gatePodsAPI]
	return on || !set
}

// VolumeHealth reports whether CSI drivers are asked for the health of volumes.
func (c *Config) VolumeHealth() bool { return c.FeatureGates[gated.CSIVolumeHealth] }

// Warnings names what was configured and has no effect.
func (c *Config) Warnings() ([]string, error) {
	var out []string
	for _, flag := range c.ignoredFlags {
		out = append(out, fmt.Sprintf("--%s is accepted but has no effect", flag))
	}
	var defaults kubeletconfig.KubeletConfiguration
	setDefaults(&defaults)
	want, err := asMap(defaults)
	if err != nil {
		return nil, err
	}
	have, err := asMap(c.KubeletConfiguration)
	if err != nil {
		return nil, err
	}
	for name, flag := range unimplementedFields {
		if reflect.DeepEqual(have[name], want[name]) {
			continue
		}
		if flag != "" {
			name += " (" + flag + ")"
		}
		out = append(out, "KubeletConfiguration: "+name+" is accepted but has no effect")
	}
	gates := slices.DeleteFunc(slices.Sorted(maps.Keys(c.FeatureGates)), func(g string) bool { return slices.Contains(checkedGates, g) })
	if len(gates) > 0 {
		out = append(out, "feature gates of other implementations have no effect: "+strings.Join(gates, ", "))
	}
	for name, list := range map[string]map[string]string{"evictionHard (--eviction-hard)": c.EvictionHard, "evictionSoft (--eviction-soft)": c.EvictionSoft} {
		for _, signal := range []string{eviction.ContainerFsAvailable, eviction.ContainerFsInodesFree} {
			if _, ok := list[signal]; ok {
				out = append(out, "KubeletConfiguration: "+name+": "+signal+" is ignored: the thresholds of the disk that containers are on apply, nodefs or imagefs")
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

func asMap(k kubeletconfig.KubeletConfiguration) (map[string]any, error) {
	data, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	return out, json.Unmarshal(data, &out)
}
