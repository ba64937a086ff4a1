// Package cgroup creates, limits, measures, empties and removes control groups on cgroup v2, v1
// and the hybrid of both. It knows nothing about pods: the kubelet uses it for QoS and pod
// groups, the CRI runtime for container groups.
//
// A path such as "/wherry-ab12/kubepods/pod7" is relative to the root of every hierarchy. The
// caller owns what lies below the first element; nothing here touches a group that it was not
// asked for. Every function is idempotent and can be repeated after a crash.
//
// On hybrid machines the v1 hierarchies carry the processes; the v2 tree carries
// only the controllers that v1 lacks (often just hugetlb).
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Mode is the combination of cgroup versions that a machine has mounted.
type Mode int

// The three layouts that Linux distributions use.
const (
	V1     Mode = iota + 1 // v1 controllers only
	Hybrid                 // v1 controllers, and a v2 tree with the rest
	V2                     // one v2 tree
)

func (m Mode) String() string {
	switch m {
	case V1:
		return "v1"
	case Hybrid:
		return "hybrid"
	case V2:
		return "v2"
	}
	return fmt.Sprintf("cgroup.Mode(%d)", int(m))
}

// hierarchy is one mounted tree: a v1 hierarchy with its controllers, or the v2 tree.
type hierarchy struct {
	dir         string
	controllers []string
	unified     bool
}

// used lists the v1 controllers in which Wherry makes groups. The others (blkio,
// net_cls, perf_event …) carry no limit that CRI can express.
var used = []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "hugetlb"}

// primary is the order in which v1 hierarchies are tried for a group's processes.
var primary = []string{"pids", "memory", "cpu", "devices", "cpuacct", "freezer", "cpuset"}

// Tree is the set of cgroup hierarchies of a machine. It holds no state about
// groups: the kernel's file system is the only truth.
type Tree struct {
	mode        Mode
	hierarchies []hierarchy
	others      []string                // mounted v1 hierarchies in which we make nothing; an OCI runtime may
	mkdir       func(path string) error // os.Mkdir; a test's fake adds the kernel's files
}

// Mode returns which versions are mounted.
func (t *Tree) Mode() Mode { return t.mode }

// system is the machine's own tree, read once: mounts of cgroup hierarchies do not
// change while a node runs.
var system = sync.OnceValues(func() (*Tree, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return detect(f)
})

// System returns the machine's cgroup hierarchies.
func System() (*Tree, error) { return system() }

// Version returns the machine's layout.
func Version() (Mode, error) {
	t, err := system()
	if err != nil {
		return 0, err
	}
	return t.mode, nil
}

// detect reads mountinfo (proc(5)) and finds the hierarchies in it.
func detect(mountinfo io.Reader) (*Tree, error) {
	t := &Tree{mkdir: func(p string) error { return os.Mkdir(p, 0o755) }}
	seen := map[string]bool{}
	s := bufio.NewScanner(mountinfo)
	for s.Scan() {
		h, key, ok := parseMount(s.Text())
		if !ok || seen[key] {
			continue // a second mount of the same hierarchy adds nothing
		}
		seen[key] = true
		if !h.unified && len(h.controllers) == 0 {
			t.others = append(t.others, h.dir)
			continue
		}
		t.hierarchies = append(t.hierarchies, h)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	v1 := slices.ContainsFunc(t.hierarchies, func(h hierarchy) bool { return !h.unified })
	v2 := slices.ContainsFunc(t.hierarchies, func(h hierarchy) bool { return h.unified })
	switch {
	case v1 && v2:
		t.mode = Hybrid
	case v1:
		t.mode = V1
	case v2:
		t.mode = V2
	default:
		return nil, errors.New("no cgroup file system is mounted; mount cgroup2 at /sys/fs/cgroup")
	}
	return t, nil
}

// parseMount turns one line of mountinfo into a hierarchy, without controllers if it has none
// that we use. key identifies the hierarchy among several mounts of it.
func parseMount(line string) (h hierarchy, key string, ok bool) {
	pre, post, found := strings.Cut(line, " - ")
	if !found {
		return hierarchy{}, "", false
	}
	left, right := strings.Fields(pre), strings.Fields(post)
	if len(left) < 5 || len(right) < 3 {
		return hierarchy{}, "", false
	}
	dir := left[4]
	switch right[0] {
	case "cgroup2":
		return hierarchy{dir: dir, unified: true}, "cgroup2", true
	case "cgroup":
		var ctl []string
		for o := range strings.SplitSeq(right[2], ",") {
			if slices.Contains(used, o) {
				ctl = append(ctl, o)
			}
		}
		key := strings.Join(ctl, ",")
		if key == "" {
			key = "other " + right[2]
		}
		return hierarchy{dir: dir, controllers: ctl}, key, true
	}
	return hierarchy{}, "", false
}

// clean checks a group's path. It refuses the root and paths that climb: no caller may limit,
// kill or remove the whole machine.
func clean(path string) (string, error) {
	p := filepath.Clean("/" + path)
	if p == "/" || strings.Contains("/"+path+"/", "/../") {
		return "", fmt.Errorf("cgroup path %q does not name a group below the root", path)
	}
	return p, nil
}

// HasV1 reports whether a v1 hierarchy carries the controller.
func (t *Tree) HasV1(controller string) bool { return t.v1(controller) != "" }

// v1 returns the hierarchy that carries the controller, or "".
func (t *Tree) v1(controller string) string {
	for _, h := range t.hierarchies {
		if !h.unified && slices.Contains(h.controllers, controller) {
			return h.dir
		}
	}
	return ""
}

// v2 returns the root of the unified tree, or "".
func (t *Tree) v2() string {
	for _, h := range t.hierarchies {
		if h.unified {
			return h.dir
		}
	}
	return ""
}

// procsRoot returns the hierarchy whose cgroup.procs lists the processes of a group.
func (t *Tree) procsRoot() string {
	if t.mode == V2 {
		return t.v2()
	}
	for _, c := range primary {
		if d := t.v1(c); d != "" {
			return d
		}
	}
	return t.v2()
}

// Exists reports whether the group exists (in the hierarchy that carries processes).
func (t *Tree) Exists(path string) bool {
	p, err := clean(path)
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(t.procsRoot(), p))
	return err == nil
}

// Exists reports whether the group exists on this machine.
func Exists(path string) bool {
	t, err := system()
	return err == nil && t.Exists(path)
}

// TaskFiles lists the v1 files into which a single-threaded process writes "0" to join the group.
// Writing to "tasks" rather than "cgroup.procs" avoids the kernel's global lock, which costs an
// RCU grace period (10 ms).
func (t *Tree) TaskFiles(path string) ([]string, error) {
	p, err := clean(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, h := range t.hierarchies {
		if !h.unified {
			files = append(files, filepath.Join(h.dir, p, "tasks"))
		}
	}
	return files, nil
}

// UnifiedDir returns the group's directory in the v2 tree, for CLONE_INTO_CGROUP, or "" if there
// is no v2 tree.
func (t *Tree) UnifiedDir(path string) (string, error) {
	p, err := clean(path)
	if err != nil {
		return "", err
	}
	if root := t.v2(); root != "" {
		return filepath.Join(root, p), nil
	}
	return "", nil
}

// Children returns the names of the groups directly below one (in the hierarchy that carries
// processes). A missing group has none.
func (t *Tree) Children(path string) ([]string, error) {
	p, err := clean(path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(t.procsRoot(), p))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list cgroups below %s: %w", p, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
