package hollow

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/version"

	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/nodestatus"
)

const (
	// LabelHollow marks nodes that are made up.
	LabelHollow = "wherry.dev/hollow"
	// AnnotationFail on a Node makes it go silent while its value is "true".
	AnnotationFail = "wherry.dev/hollow-fail"

	runtimeName    = "hollow"
	runtimeVersion = "1.0.0"
)

func (c *Config) name(i int) string { return c.NamePrefix + strconv.Itoa(i) }

// address returns the address of a node: the first of the network belongs to nobody.
func (c *Config) address(i int) netip.Addr { return plus(c.NodeCIDR.Masked().Addr(), uint32(i)+1) }

// podNetwork returns the network of a node's pods.
func (c *Config) podNetwork(i int) netip.Prefix {
	return netip.PrefixFrom(plus(c.PodCIDR.Masked().Addr(), uint32(i)<<c.podBits()), 32-c.podBits())
}

func plus(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// labels returns what marks a node as made up, where it is, and what it was given.
func (c *Config) labels(i int) map[string]string {
	out := map[string]string{
		LabelHollow: "true", v1.LabelInstanceTypeStable: "hollow",
		v1.LabelTopologyRegion: c.Region, v1.LabelTopologyZone: c.Zones[i%len(c.Zones)],
	}
	maps.Copy(out, c.Labels)
	return out
}

// machine returns the machine that a node says it runs on. Its IDs depend on the name only, so that
// the next process does not report a reboot.
func (c *Config) machine(i int) *nodestatus.Machine {
	id := func(what string) string { return uuid.NewSHA1(uuid.NameSpaceDNS, []byte(c.name(i)+"."+what)).String() }
	return &nodestatus.Machine{
		CPUs: roundUp(c.CPU), Memory: c.Memory.Value(), Storage: c.EphemeralStorage.Value(),
		Info: v1.NodeSystemInfo{
			MachineID: id("machine"), SystemUUID: id("system"), BootID: id("boot"), OSImage: "Hollow",
			KernelVersion: "6.12.0-hollow", OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		},
	}
}

// roundUp returns the cores of a machine that has so much for its pods.
func roundUp(cpu resource.Quantity) int64 { return (cpu.MilliValue() + 999) / 1000 }

// reserved is what a machine of whole cores has beyond what its pods may use.
func (c *Config) reserved() v1.ResourceList {
	rest := *resource.NewMilliQuantity(roundUp(c.CPU)*1000-c.CPU.MilliValue(), resource.DecimalSI)
	return v1.ResourceList{v1.ResourceCPU: rest}
}

func (c *Config) reporter(i int) nodestatus.Config {
	return nodestatus.Config{
		Name: c.name(i), Hostname: c.name(i), IPs: []string{c.address(i).String()}, Labels: c.labels(i), Taints: c.Taints,
		PodCIDR: c.podNetwork(i).String(), Register: true, Features: admission.Features, MaxPods: int64(c.Pods),
		Reserved: c.reserved(), Machine: c.machine(i), RuntimeVersion: fmt.Sprintf("%s://%s", runtimeName, runtimeVersion),
		KubeletVersion: version.Get().GitVersion, Port: func() int32 { return 0 }, MaxImages: 0,
		ReportEvery: jitter(c.StatusEvery), LeaseSeconds: int32(4 * c.Heartbeat / time.Second), Jitter: jitter,
	}
}

// jitter spreads what many nodes do at the same period, by up to a tenth either way.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5+1)
}
