package nodestatus

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// facts about the machine that do not change while it is up.
type facts struct {
	cpus    int64
	memory  int64
	storage int64
	huge    v1.ResourceList
	info    v1.NodeSystemInfo
}

// Machine is what a node says about a machine that does not exist.
type Machine struct {
	// CPUs in cores; Memory and Storage in bytes.
	CPUs, Memory, Storage int64
	Info                  v1.NodeSystemInfo
}

func factsOf(cfg Config) (facts, error) {
	if m := cfg.Machine; m != nil {
		return facts{cpus: m.CPUs, memory: m.Memory, storage: m.Storage, info: m.Info}, nil
	}
	return readFacts(cfg.RootDir)
}

func readFacts(root string) (facts, error) {
	f := facts{cpus: int64(runtime.NumCPU()), huge: v1.ResourceList{}}
	mem, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return f, err
	}
	f.info = systemInfo()
	if err := f.ofMemory(mem); err != nil {
		return f, err
	}
	if f.storage, err = storage(root); err != nil {
		return f, err
	}
	f.hugepages()
	return f, nil
}

// ofMemory takes over what /proc/meminfo says. A machine without swap reports none.
func (f *facts) ofMemory(meminfo []byte) error {
	values := parseMeminfo(meminfo)
	if f.memory = values["MemTotal"]; f.memory == 0 {
		return errors.New("/proc/meminfo has no MemTotal")
	}
	if swap := values["SwapTotal"]; swap > 0 {
		f.info.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	return nil
}

// parseMeminfo parses /proc/meminfo into bytes.
func parseMeminfo(data []byte) map[string]int64 {
	out := map[string]int64{}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			continue
		}
		if len(fields) > 1 && fields[1] == "kB" {
			n *= 1024
		}
		out[name] = n
	}
	return out
}

// storage returns the size of the file system of the nearest directory that exists.
func storage(dir string) (int64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Blocks) * st.Bsize, nil
		}
		if dir == "/" || dir == "." {
			return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		dir = filepath.Dir(dir)
	}
}

func (f *facts) hugepages() {
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return
	}
	for _, dir := range dirs {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		count, err := strconv.ParseInt(readLine(filepath.Join(dir, "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		size := resource.NewQuantity(kb*1024, resource.BinarySI)
		f.huge[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(kb*1024*count, resource.BinarySI)
	}
}

func systemInfo() v1.NodeSystemInfo {
	info := v1.NodeSystemInfo{
		MachineID: readLine("/etc/machine-id"), SystemUUID: readLine("/sys/class/dmi/id/product_uuid"),
		BootID: readLine("/proc/sys/kernel/random/boot_id"), OSImage: osImage(),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		info.KernelVersion = unix.ByteSliceToString(u.Release[:])
	}
	if info.MachineID == "" {
		info.MachineID = info.SystemUUID
	}
	if info.SystemUUID == "" {
		info.SystemUUID = info.MachineID
	}
	return info
}

func osImage() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return "Linux"
}

// readLine returns a small file's first line, or an empty string if it cannot be read.
func readLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

// PIDs returns how many processes the machine can have.
func PIDs() int64 {
	n, err := strconv.ParseInt(readLine("/proc/sys/kernel/pid_max"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Capacity returns the machine's memory and the size of the file system that dir
// is on, in bytes.
func Capacity(dir string) (memory, storageBytes int64, err error) {
	f, err := readFacts(dir)
	return f.memory, f.storage, err
}
