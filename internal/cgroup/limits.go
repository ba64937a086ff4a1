package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// setting is one control file and the value to write.
type setting struct{ file, value string }

func writeAll(dir string, settings []setting) error {
	for _, s := range settings {
		if err := write(dir, s.file, s.value); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) applyV1(p string, r *specs.LinuxResources) error {
	if len(r.Unified) > 0 {
		return fmt.Errorf("unified settings (%s) need cgroup v2, but this machine has %s",
			strings.Join(slices.Sorted(maps.Keys(r.Unified)), ", "), t.mode)
	}
	in := func(controller string, settings []setting) error {
		if len(settings) == 0 {
			return nil
		}
		root := t.v1(controller)
		if root == "" {
			return fmt.Errorf("no %s controller is mounted", controller)
		}
		return writeAll(filepath.Join(root, p), settings)
	}
	if root := t.v1("memory"); r.Memory != nil && root != "" {
		if err := applyMemoryV1(filepath.Join(root, p), r.Memory); err != nil {
			return err
		}
	}
	if err := in("cpu", cpuV1(r.CPU)); err != nil {
		return err
	}
	if err := in("cpuset", cpuset(r.CPU)); err != nil {
		return err
	}
	if err := in("pids", pids(r.Pids)); err != nil {
		return err
	}
	return t.applyHuge(p, r.HugepageLimits)
}

// applyHuge writes huge page limits to the hierarchy that has the controller; on hybrid machines
// that is often the v2 tree.
func (t *Tree) applyHuge(p string, limits []specs.LinuxHugepageLimit) error {
	root, format := t.v1("hugetlb"), "hugetlb.%s.limit_in_bytes"
	if root == "" {
		root, format = t.v2(), "hugetlb.%s.max"
	}
	for _, l := range limits {
		if root == "" && l.Limit == 0 {
			continue
		}
		if root == "" {
			return errors.New("no hugetlb controller is mounted")
		}
		err := write(filepath.Join(root, p), fmt.Sprintf(format, l.Pagesize), strconv.FormatUint(l.Limit, 10))
		if errors.Is(err, fs.ErrNotExist) && l.Limit == 0 {
			continue // there are no such pages, so the limit already holds
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applyMemoryV1 orders the two limits so that memory <= memory+swap holds at every moment: it
// sets memory+swap first when growing, and memory first when shrinking.
func applyMemoryV1(dir string, m *specs.LinuxMemory) error {
	var limit, swap []setting
	if m.Limit != nil && *m.Limit != 0 {
		limit = []setting{{"memory.limit_in_bytes", strconv.FormatInt(*m.Limit, 10)}}
	}
	if m.Swap != nil && *m.Swap != 0 && fileExists(dir, "memory.memsw.limit_in_bytes") {
		swap = []setting{{"memory.memsw.limit_in_bytes", strconv.FormatInt(*m.Swap, 10)}}
	}
	order := slices.Concat(limit, swap)
	if len(limit) > 0 && len(swap) > 0 && grows(dir, "memory.limit_in_bytes", *m.Limit) {
		order = slices.Concat(swap, limit)
	}
	if m.Reservation != nil && *m.Reservation != 0 {
		order = append(order, setting{"memory.soft_limit_in_bytes", strconv.FormatInt(*m.Reservation, 10)})
	}
	return writeAll(dir, order)
}

func grows(dir, file string, to int64) bool {
	have, err := readInt(dir, file)
	return err == nil && (to < 0 || uint64(to) > have)
}

func cpuV1(c *specs.LinuxCPU) []setting {
	if c == nil {
		return nil
	}
	var s []setting
	if c.Shares != nil && *c.Shares != 0 {
		s = append(s, setting{"cpu.shares", strconv.FormatUint(*c.Shares, 10)})
	}
	if c.Period != nil && *c.Period != 0 {
		s = append(s, setting{"cpu.cfs_period_us", strconv.FormatUint(*c.Period, 10)})
	}
	if c.Quota != nil && *c.Quota != 0 {
		s = append(s, setting{"cpu.cfs_quota_us", strconv.FormatInt(*c.Quota, 10)})
	}
	return s
}

func cpuset(c *specs.LinuxCPU) []setting {
	if c == nil {
		return nil
	}
	var s []setting
	if c.Cpus != "" {
		s = append(s, setting{"cpuset.cpus", c.Cpus})
	}
	if c.Mems != "" {
		s = append(s, setting{"cpuset.mems", c.Mems})
	}
	return s
}

func pids(p *specs.LinuxPids) []setting {
	if p == nil || p.Limit == nil || *p.Limit == 0 {
		return nil
	}
	if *p.Limit < 0 {
		return []setting{{"pids.max", "max"}}
	}
	return []setting{{"pids.max", strconv.FormatInt(*p.Limit, 10)}}
}

// applyDevices writes a v1 device list: all denied, then the allowed ones. On v2,
// devices are an eBPF program, which the OCI runtime attaches.
func (t *Tree) applyDevices(p string, r *specs.LinuxResources) error {
	root := t.v1("devices")
	if r == nil || len(r.Devices) == 0 || root == "" {
		return nil
	}
	dir := filepath.Join(root, p)
	for _, d := range r.Devices {
		file := "devices.deny"
		if d.Allow {
			file = "devices.allow"
		}
		if err := write(dir, file, deviceRule(d)); err != nil {
			return err
		}
	}
	return nil
}

func deviceRule(d specs.LinuxDeviceCgroup) string {
	typ, access := d.Type, d.Access
	if typ == "" {
		typ = "a"
	}
	if access == "" {
		access = "rwm"
	}
	number := func(n *int64) string {
		if n == nil || *n < 0 {
			return "*"
		}
		return strconv.FormatInt(*n, 10)
	}
	return fmt.Sprintf("%s %s:%s %s", typ, number(d.Major), number(d.Minor), access)
}

func (t *Tree) applyV2(dir string, r *specs.LinuxResources) error {
	s := slices.Concat(memoryV2(dir, r.Memory), cpuV2(r.CPU), cpuset(r.CPU), pids(r.Pids))
	for _, k := range slices.Sorted(maps.Keys(r.Unified)) {
		if strings.ContainsRune(k, '/') {
			return fmt.Errorf("unified setting %q is not the name of a control file", k)
		}
		s = append(s, setting{k, r.Unified[k]})
	}
	if err := writeAll(dir, s); err != nil {
		return err
	}
	p, err := filepath.Rel(t.v2(), dir)
	if err != nil {
		return err
	}
	return t.applyHuge(p, r.HugepageLimits)
}

// memoryV2 translates OCI's limits: OCI's swap is memory plus swap, v2's is only swap.
func memoryV2(dir string, m *specs.LinuxMemory) []setting {
	if m == nil {
		return nil
	}
	amount := func(n int64) string {
		if n < 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	var s []setting
	if m.Reservation != nil && *m.Reservation > 0 {
		s = append(s, setting{"memory.low", amount(*m.Reservation)})
	}
	if m.Limit != nil && *m.Limit != 0 {
		s = append(s, setting{"memory.max", amount(*m.Limit)})
	}
	if m.Swap != nil && *m.Swap != 0 && fileExists(dir, "memory.swap.max") {
		swap := *m.Swap
		if swap > 0 && m.Limit != nil && *m.Limit > 0 {
			swap = max(0, swap-*m.Limit)
		}
		s = append(s, setting{"memory.swap.max", amount(swap)})
	}
	return s
}

func cpuV2(c *specs.LinuxCPU) []setting {
	if c == nil {
		return nil
	}
	var s []setting
	if c.Shares != nil && *c.Shares != 0 {
		s = append(s, setting{"cpu.weight", strconv.FormatUint(Weight(*c.Shares), 10)})
	}
	quota := "max"
	if c.Quota != nil && *c.Quota > 0 {
		quota = strconv.FormatInt(*c.Quota, 10)
	}
	switch {
	case c.Period != nil && *c.Period != 0:
		s = append(s, setting{"cpu.max", fmt.Sprintf("%s %d", quota, *c.Period)})
	case c.Quota != nil && *c.Quota != 0:
		s = append(s, setting{"cpu.max", quota})
	}
	return s
}

// maxShares is the highest value of cpu.shares.
const maxShares = 262144

// Weight maps cpu.shares (2 to 262144, default 1024) to cpu.weight (1 to 10000, default 100)
// along the curve that runc 1.3 and crun 1.23 introduced, which maps 2, 1024 and 262144 to 1, 100
// and 10000.
func Weight(shares uint64) uint64 {
	if shares <= 2 {
		return 1
	}
	if shares >= maxShares {
		return 10000
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612.0-7.0/34.0)))
}

func fileExists(dir, file string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return err == nil
}

// gone reports whether err means that a group or a process no longer exists.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)
}
