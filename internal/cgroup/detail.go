package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Details is what metrics report about a group in addition to Stats: counters that only operators
// look at, and the limits in force. What the kernel does not count here is zero.
type Details struct {
	Stats

	User, System, Throttled time.Duration
	Periods, ThrottledCount uint64

	Cache, Kernel, MappedFile   uint64 // bytes
	MaxUsage, LimitHits         uint64
	OwnFaults, OwnMajorFaults   uint64 // without descendants; v2 does not count these separately
	Shares, Period              uint64
	Quota                       int64 // µs per period; 0 means none
	Reservation, SwapLimit, Max uint64
	// SwapLimit is for memory and swap together; 0 means none. Max is for processes.

	Huge  []HugePages
	Disks []DiskIO
	PIDs  []int
}

// HugePages is the usage of one size of huge pages.
type HugePages struct {
	Size           string
	Usage, MaxUsed uint64
}

// DiskIO is what was done to one device.
type DiskIO struct {
	Major, Minor                         uint64
	ReadBytes, WriteBytes, Reads, Writes uint64
}

// ReadDetails measures a group in full. The error is fs.ErrNotExist if there is no such group.
func ReadDetails(path string) (Details, error) {
	t, err := system()
	if err != nil {
		return Details{}, err
	}
	return t.Details(path)
}

// Details measures a group of this tree in full.
func (t *Tree) Details(path string) (Details, error) {
	st, err := t.Stats(path)
	if err != nil {
		return Details{}, err
	}
	p, err := clean(path)
	if err != nil {
		return Details{}, err
	}
	d := Details{Stats: st}
	if t.mode == V2 {
		err = d.readV2(filepath.Join(t.v2(), p))
	} else {
		err = d.readV1(t, p)
	}
	if err == nil {
		d.PIDs, err = readPIDs(filepath.Join(t.procsRoot(), p))
	}
	if err != nil {
		return Details{}, fmt.Errorf("measure cgroup %s: %w", p, err)
	}
	return d, nil
}

// reader reads control files of one group and keeps the first error. Missing files, and "max",
// read as zero.
type reader struct {
	dir string
	err error
}

func (r *reader) number(file string) uint64 {
	n, err := readInt(r.dir, file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, strconv.ErrSyntax) || n >= unlimited {
		return 0
	}
	r.keep(err)
	return n
}

func (r *reader) table(file string) map[string]uint64 {
	m, err := readTable(r.dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r.keep(err)
	return m
}

func (r *reader) lines(file string) []string {
	doc, err := os.ReadFile(filepath.Join(r.dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r.keep(err)
	return strings.Split(strings.TrimSpace(string(doc)), "\n")
}

func (r *reader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// userHZ is the unit of cpuacct.stat on every architecture (times(2)).
const userHZ = 100

func (d *Details) readV1(t *Tree, p string) error {
	in := func(controller string) *reader { return &reader{dir: filepath.Join(t.v1(controller), p)} }
	acct, cpu, mem, pids, blk := in("cpuacct"), in("cpu"), in("memory"), in("pids"), in("blkio")
	ticks := acct.table("cpuacct.stat")
	d.User, d.System = time.Duration(ticks["user"])*time.Second/userHZ, time.Duration(ticks["system"])*time.Second/userHZ
	sched := cpu.table("cpu.stat")
	d.Periods, d.ThrottledCount, d.Throttled = sched["nr_periods"], sched["nr_throttled"], time.Duration(sched["throttled_time"])
	d.Shares, d.Period = cpu.number("cpu.shares"), cpu.number("cpu.cfs_period_us")
	d.Quota = int64(cpu.number("cpu.cfs_quota_us")) // -1 does not parse as a number and means none
	stat := mem.table("memory.stat")
	d.Cache, d.MappedFile = stat["total_cache"], stat["total_mapped_file"]
	d.OwnFaults, d.OwnMajorFaults = stat["pgfault"], stat["pgmajfault"]
	d.Kernel, d.MaxUsage, d.LimitHits = mem.number("memory.kmem.usage_in_bytes"), mem.number("memory.max_usage_in_bytes"), mem.number("memory.failcnt")
	d.Reservation, d.SwapLimit = mem.number("memory.soft_limit_in_bytes"), mem.number("memory.memsw.limit_in_bytes")
	d.Max = pids.number("pids.max")
	d.Disks = disksV1(blk)
	huge := &reader{}
	if t.v1("hugetlb") != "" {
		huge.dir = filepath.Join(t.v1("hugetlb"), p)
		d.Huge = huge.pages("hugetlb.%s.usage_in_bytes", "hugetlb.%s.max_usage_in_bytes")
	} else if t.v2() != "" {
		huge.dir = filepath.Join(t.v2(), p)
		d.Huge = huge.pages("hugetlb.%s.current", "")
	}
	return errors.Join(acct.err, cpu.err, mem.err, pids.err, blk.err, huge.err)
}

func (d *Details) readV2(dir string) error {
	r := &reader{dir: dir}
	cpu := r.table("cpu.stat")
	micros := func(key string) time.Duration { return time.Duration(cpu[key]) * time.Microsecond }
	d.User, d.System, d.Throttled = micros("user_usec"), micros("system_usec"), micros("throttled_usec")
	d.Periods, d.ThrottledCount = cpu["nr_periods"], cpu["nr_throttled"]
	d.Shares = shares(r.number("cpu.weight"))
	for _, l := range r.lines("cpu.max") {
		if _, err := fmt.Sscanf(l, "%d %d", &d.Quota, &d.Period); err != nil { // "max 100000"
			_, err = fmt.Sscanf(l, "max %d", &d.Period)
			r.keep(err)
		}
	}
	stat, events := r.table("memory.stat"), r.table("memory.events")
	d.Cache, d.MappedFile, d.Kernel = stat["file"], stat["file_mapped"], stat["kernel"]
	d.OwnFaults, d.OwnMajorFaults = d.PageFaults, d.MajorPageFaults
	d.MaxUsage, d.LimitHits = r.number("memory.peak"), events["max"]
	d.Reservation = r.number("memory.low")
	if swap := r.number("memory.swap.max"); d.MemoryLimit > 0 && fileExists(dir, "memory.swap.max") {
		d.SwapLimit = d.MemoryLimit + swap
	}
	d.Max = r.number("pids.max")
	for _, l := range r.lines("io.stat") {
		if disk, ok := parseIOStat(l); ok {
			d.Disks = append(d.Disks, disk)
		}
	}
	d.Huge = r.pages("hugetlb.%s.current", "")
	return r.err
}

// shares inverts Weight: it returns the highest shares that map to this weight, which
// is 1024 for 100.
func shares(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	return uint64(sort.Search(maxShares, func(s int) bool { return Weight(uint64(s)+1) > weight }))
}

// pages lists the sizes that the kernel has, taken from its file names.
func (r *reader) pages(usage, highest string) []HugePages {
	prefix, suffix, _ := strings.Cut(usage, "%s")
	files, err := filepath.Glob(filepath.Join(r.dir, prefix+"*"+suffix))
	r.keep(err)
	var all []HugePages
	for _, f := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), prefix), suffix)
		if strings.Contains(size, ".") {
			continue // counts reservations: hugetlb.2MB.rsvd.current
		}
		h := HugePages{Size: size, Usage: r.number(filepath.Base(f))}
		if h.MaxUsed = h.Usage; highest != "" {
			h.MaxUsed = r.number(fmt.Sprintf(highest, size))
		}
		all = append(all, h)
	}
	return all
}

// disksV1 parses blkio.throttle.*: lines of "8:0 Read 4096".
func disksV1(r *reader) []DiskIO {
	var all []DiskIO
	at := func(major, minor uint64) *DiskIO {
		for i := range all {
			if all[i].Major == major && all[i].Minor == minor {
				return &all[i]
			}
		}
		all = append(all, DiskIO{Major: major, Minor: minor})
		return &all[len(all)-1]
	}
	read := func(file string, set func(d *DiskIO, op string, n uint64)) {
		for _, l := range r.lines(file) {
			var major, minor, n uint64
			var op string
			if _, err := fmt.Sscanf(l, "%d:%d %s %d", &major, &minor, &op, &n); err == nil {
				set(at(major, minor), op, n)
			}
		}
	}
	read("blkio.throttle.io_service_bytes_recursive", func(d *DiskIO, op string, n uint64) {
		switch op {
		case "Read":
			d.ReadBytes = n
		case "Write":
			d.WriteBytes = n
		}
	})
	read("blkio.throttle.io_serviced_recursive", func(d *DiskIO, op string, n uint64) {
		switch op {
		case "Read":
			d.Reads = n
		case "Write":
			d.Writes = n
		}
	})
	return all
}

// parseIOStat parses a line of io.stat: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 …".
func parseIOStat(line string) (d DiskIO, ok bool) {
	f := strings.Fields(line)
	if len(f) < 2 {
		return d, false
	}
	if _, err := fmt.Sscanf(f[0], "%d:%d", &d.Major, &d.Minor); err != nil {
		return d, false
	}
	for _, kv := range f[1:] {
		key, value, _ := strings.Cut(kv, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue
		}
		switch key {
		case "rbytes":
			d.ReadBytes = n
		case "wbytes":
			d.WriteBytes = n
		case "rios":
			d.Reads = n
		case "wios":
			d.Writes = n
		}
	}
	return d, true
}

// readPIDs lists the processes of a group and its descendants.
func readPIDs(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone in the meantime
		}
		if err != nil || !e.IsDir() {
			return err
		}
		r := &reader{dir: path}
		for _, l := range r.lines("cgroup.procs") {
			if pid, err := strconv.Atoi(l); err == nil {
				pids = append(pids, pid)
			}
		}
		return r.err
	})
	return pids, err
}
