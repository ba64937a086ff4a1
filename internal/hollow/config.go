package hollow

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config describes the nodes.
type Config struct {
	// Nodes is how many there are. Their names are NamePrefix and a number from 0 on.
	Nodes      int
	NamePrefix string
	// Zones that the nodes are spread over, all in Region.
	Zones  []string
	Region string
	// CPU, Memory, EphemeralStorage and Pods are what pods of each node may use.
	CPU, Memory, EphemeralStorage resource.Quantity
	Pods                          int
	Labels                        map[string]string
	Taints                        []v1.Taint
	// NodeCIDR has the nodes' addresses, PodCIDR those of all their pods.
	NodeCIDR, PodCIDR netip.Prefix
	// PodStartDelay is how long the sandbox of a pod takes.
	PodStartDelay time.Duration
	// Heartbeat is the time between two renewals of a lease, which lasts four times as long;
	// StatusEvery the one between two statuses in which nothing has changed.
	Heartbeat, StatusEvery time.Duration
	// Parallel is how many nodes start at the same time.
	Parallel int
	// Events: the nodes write events as kubelets do.
	Events bool
	// Cleanup: the nodes are deleted at the end. Otherwise they stay, as those of killed kubelets.
	Cleanup bool
	// Progress is told how many nodes are ready, a line at a time.
	Progress io.Writer
}

// DefaultConfig is a small fleet of medium-sized nodes.
func DefaultConfig() Config {
	return Config{
		Nodes: 100, NamePrefix: "hollow-", Zones: []string{"zone-a", "zone-b", "zone-c"}, Region: "hollow",
		CPU: resource.MustParse("8"), Memory: resource.MustParse("32Gi"), Pods: 110,
		EphemeralStorage: resource.MustParse("100Gi"),
		NodeCIDR:         netip.MustParsePrefix("10.192.0.0/16"), PodCIDR: netip.MustParsePrefix("10.128.0.0/10"),
		Heartbeat: 10 * time.Second, StatusEvery: 5 * time.Minute, Parallel: 32, Events: true, Progress: io.Discard,
	}
}

// Validate returns what is wrong, by flag, with what to do about it.
func (c *Config) Validate() error {
	return errors.Join(c.validateNodes(), c.validateSize(), c.validateNetworks(), c.validateTimes())
}

func (c *Config) validateNodes() error {
	if c.Nodes < 1 {
		return fmt.Errorf("--nodes %d: give the number of nodes, at least 1", c.Nodes)
	}
	last := c.name(c.Nodes - 1)
	if len(last) > validation.DNS1123LabelMaxLength { // it is also the value of a label
		return fmt.Errorf("--name-prefix %q: the name %s is longer than %d characters; shorten the prefix",
			c.NamePrefix, last, validation.DNS1123LabelMaxLength)
	}
	if bad := validation.IsDNS1123Subdomain(last); len(bad) > 0 {
		return fmt.Errorf("--name-prefix %q: %s cannot be the name of a node; use small letters, digits and dashes",
			c.NamePrefix, last)
	}
	if len(c.Zones) == 0 {
		return errors.New("--zones: name at least one zone")
	}
	for flag, values := range map[string][]string{"--zones": c.Zones, "--region": {c.Region}} {
		for _, value := range values {
			if bad := validation.IsValidLabelValue(value); len(bad) > 0 || value == "" {
				return fmt.Errorf("%s: %q cannot be the value of a label; use letters, digits, dashes, dots and underscores",
					flag, value)
			}
		}
	}
	return c.validateLabels()
}

func (c *Config) validateLabels() error {
	for key, value := range c.Labels {
		if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
			return fmt.Errorf("--node-labels %s=%s: %s", key, value, strings.Join(bad, "; "))
		}
	}
	return nil
}

func (c *Config) validateSize() error {
	for flag, q := range map[string]resource.Quantity{
		"--cpu": c.CPU, "--memory": c.Memory, "--ephemeral-storage": c.EphemeralStorage,
	} {
		if q.Sign() <= 0 {
			return fmt.Errorf("%s %s: a node needs some; give more than 0", flag, q.String())
		}
	}
	if c.Pods < 1 {
		return fmt.Errorf("--pods %d: give the number of pods that a node takes, at least 1", c.Pods)
	}
	return nil
}

func (c *Config) validateNetworks() error {
	for flag, p := range map[string]netip.Prefix{"--node-cidr": c.NodeCIDR, "--pod-cidr": c.PodCIDR} {
		if !p.Addr().Is4() {
			return fmt.Errorf("%s %s: give a network of IPv4, as 10.0.0.0/8", flag, p)
		}
	}
	if c.NodeCIDR.Overlaps(c.PodCIDR) {
		return fmt.Errorf("--node-cidr %s and --pod-cidr %s overlap; move one of them", c.NodeCIDR, c.PodCIDR)
	}
	if room := 32 - c.NodeCIDR.Bits(); bits.Len(uint(c.Nodes+1)) > room {
		return fmt.Errorf("--node-cidr %s has no %d addresses; give a larger network", c.NodeCIDR, c.Nodes)
	}
	if room := 32 - c.PodCIDR.Bits() - c.podBits(); room < 0 || bits.Len(uint(c.Nodes-1)) > room {
		return fmt.Errorf("--pod-cidr %s has no room for %d nodes with a /%d each; give a larger network, or fewer --pods",
			c.PodCIDR, c.Nodes, 32-c.podBits())
	}
	return nil
}

func (c *Config) validateTimes() error {
	if c.Heartbeat < time.Second || c.Heartbeat%time.Second != 0 {
		return fmt.Errorf("--heartbeat %s: leases are counted in seconds; give whole seconds, at least 1s", c.Heartbeat)
	}
	if c.StatusEvery < c.Heartbeat {
		return fmt.Errorf("--status-period %s is shorter than --heartbeat %s; make it longer", c.StatusEvery, c.Heartbeat)
	}
	if c.PodStartDelay < 0 {
		return fmt.Errorf("--pod-start-delay %s: give 0 or more", c.PodStartDelay)
	}
	if c.Parallel < 1 {
		return fmt.Errorf("--parallel %d: give the number of nodes that start at the same time, at least 1", c.Parallel)
	}
	return nil
}

// podBits is how many bits of a pod's address are its node's to give: for twice as many pods as the
// node takes, so that the address of a pod that ended is not given again at once.
func (c *Config) podBits() int { return bits.Len(uint(2*c.Pods + 1)) }
