package cgroup

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stats is what the kernel counts for a group and its descendants.
type Stats struct {
	Time time.Time // when it was read

	CPU time.Duration // used since the group was made

	MemoryUsage      uint64 // bytes, page cache included
	MemoryWorkingSet uint64 // usage without inactive file pages: what cannot be reclaimed easily
	MemoryRSS        uint64 // anonymous memory
	MemoryLimit      uint64 // 0 means none
	PageFaults       uint64
	MajorPageFaults  uint64
	SwapUsage        uint64
	SwapMax          *uint64 // bytes that may be swapped out; nil means no limit
	OOMKills         uint64  // processes that the kernel killed because memory ran out

	Pids uint64

	CPUPressure, MemoryPressure, IOPressure *Pressure // v2 only
}

// Pressure is one PSI file (Linux Documentation/accounting/psi.rst).
type Pressure struct{ Some, Full PressureLine }

// PressureLine has the averages over 10, 60 and 300 s in percent, and the total.
type PressureLine struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// unlimited is a lower bound of what v1 reports as "no limit" (PAGE_COUNTER_MAX).
const unlimited = 1 << 62

// ReadStats measures a group. The error is fs.ErrNotExist if there is no such group.
func ReadStats(path string) (Stats, error) {
	t, err := system()
	if err != nil {
		return Stats{}, err
	}
	return t.Stats(path)
}

// Stats measures a group of this tree.
func (t *Tree) Stats(path string) (Stats, error) {
	p, err := clean(path)
	if err != nil {
		return Stats{}, err
	}
	if !t.Exists(p) {
		return Stats{}, fmt.Errorf("measure cgroup %s: %w", p, fs.ErrNotExist)
	}
	s := Stats{Time: time.Now()}
	if t.mode == V2 {
		err = statsV2(filepath.Join(t.v2(), p), &s)
	} else {
		err = t.statsV1(p, &s)
	}
	if err != nil {
		return Stats{}, fmt.Errorf("measure cgroup %s: %w", p, err)
	}
	return s, nil
}

// OOMKills returns how many processes of the group the kernel has killed because memory ran out.
func OOMKills(path string) (uint64, error) {
	t, err := system()
	if err != nil {
		return 0, err
	}
	p, err := clean(path)
	if err != nil {
		return 0, err
	}
	dir, file := filepath.Join(t.v1("memory"), p), "memory.oom_control"
	if t.mode == V2 {
		dir, file = filepath.Join(t.v2(), p), "memory.events"
	}
	table, err := readTable(dir, file)
	return table["oom_kill"], err
}

func (t *Tree) statsV1(p string, s *Stats) error {
	if root := t.v1("cpuacct"); root != "" {
		ns, err := readInt(filepath.Join(root, p), "cpuacct.usage")
		if err != nil {
			return err
		}
		s.CPU = time.Duration(ns)
	}
	if root := t.v1("pids"); root != "" {
		n, err := readInt(filepath.Join(root, p), "pids.current")
		if err != nil {
			return err
		}
		s.Pids = n
	}
	root := t.v1("memory")
	if root == "" {
		return nil
	}
	return memoryStatsV1(filepath.Join(root, p), s)
}

func memoryStatsV1(dir string, s *Stats) error {
	usage, err := readInt(dir, "memory.usage_in_bytes")
	if err != nil {
		return err
	}
	limit, err := readInt(dir, "memory.limit_in_bytes")
	if err != nil {
		return err
	}
	stat, err := readTable(dir, "memory.stat")
	if err != nil {
		return err
	}
	oom, err := readTable(dir, "memory.oom_control")
	if err != nil {
		return err
	}
	s.MemoryUsage, s.MemoryRSS = usage, stat["total_rss"]
	s.MemoryWorkingSet = usage - min(usage, stat["total_inactive_file"])
	s.PageFaults, s.MajorPageFaults = stat["total_pgfault"], stat["total_pgmajfault"]
	s.SwapUsage, s.OOMKills = stat["total_swap"], oom["oom_kill"]
	if limit >= unlimited {
		return nil
	}
	s.MemoryLimit = limit
	if both, err := readInt(dir, "memory.memsw.limit_in_bytes"); err == nil && both < unlimited { // absent without swap accounting
		s.SwapMax = new(both - min(both, limit))
	}
	return nil
}

func statsV2(dir string, s *Stats) error {
	cpu, err := readTable(dir, "cpu.stat")
	if err != nil {
		return err
	}
	s.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	if s.Pids, err = readInt(dir, "pids.current"); err != nil {
		return err
	}
	if s.MemoryUsage, err = readInt(dir, "memory.current"); err != nil {
		return err
	}
	stat, err := readTable(dir, "memory.stat")
	if err != nil {
		return err
	}
	events, err := readTable(dir, "memory.events")
	if err != nil {
		return err
	}
	s.MemoryRSS = stat["anon"]
	s.MemoryWorkingSet = s.MemoryUsage - min(s.MemoryUsage, stat["inactive_file"])
	s.PageFaults, s.MajorPageFaults = stat["pgfault"], stat["pgmajfault"]
	s.OOMKills = events["oom_kill"]
	if fileExists(dir, "memory.swap.current") {
		if s.SwapUsage, err = readInt(dir, "memory.swap.current"); err != nil {
			return err
		}
		if swap, err := readInt(dir, "memory.swap.max"); err == nil { // "max" does not parse, and means none
			s.SwapMax = &swap
		}
	}
	if limit, err := readInt(dir, "memory.max"); err == nil {
		s.MemoryLimit = limit // "max" does not parse, and means none
	}
	s.CPUPressure = ReadPressure(filepath.Join(dir, "cpu.pressure"))
	s.MemoryPressure = ReadPressure(filepath.Join(dir, "memory.pressure"))
	s.IOPressure = ReadPressure(filepath.Join(dir, "io.pressure"))
	return nil
}

func readInt(dir, file string) (uint64, error) {
	doc, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(doc)), 10, 64)
}

// readTable reads a file of "name number" lines; lines of another form are skipped.
func readTable(dir, file string) (map[string]uint64, error) {
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	table := map[string]uint64{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		name, value, _ := strings.Cut(s.Text(), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			table[name] = n
		}
	}
	return table, s.Err()
}

// ReadPressure reads a PSI file, of a cgroup or of the machine. It returns nil if the kernel has
// none or PSI is off.
func ReadPressure(path string) *Pressure {
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	p, err := parsePressure(string(doc))
	if err != nil {
		return nil
	}
	return &p
}

func parsePressure(doc string) (Pressure, error) {
	var p Pressure
	for line := range strings.SplitSeq(strings.TrimSpace(doc), "\n") {
		var kind string
		var l PressureLine
		var total int64
		if _, err := fmt.Sscanf(line, "%s avg10=%f avg60=%f avg300=%f total=%d",
			&kind, &l.Avg10, &l.Avg60, &l.Avg300, &total); err != nil {
			return Pressure{}, fmt.Errorf("pressure line %q: %w", line, err)
		}
		l.Total = time.Duration(total) * time.Microsecond
		switch kind {
		case "some":
			p.Some = l
		case "full":
			p.Full = l
		}
	}
	return p, nil
}
