// Package fakeiscsi is a node with open-iscsi and targets, for tests on machines whose kernel has no iSCSI. What iscsiadm
// does is made up, and so is sysfs, which takes what is written to it as the kernel does; the disks are real: loop devices.
package fakeiscsi

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Node is the machine. What tests set is set before it is used.
type Node struct {
	// Root is in front of its /sys and /dev.
	Root string
	// Refuse, if not nil, is asked before iscsiadm does anything; an error is what it ends with.
	Refuse func(args string) error

	mu       sync.Mutex
	targets  map[string]map[int]string // by IQN and LUN: loop devices
	records  map[string]map[string]string
	sessions map[string]int // by record: the number
	disks    map[string]disk
	made     int
	calls    []string
	wait     sync.WaitGroup
}

// disk is one that the node has found.
type disk struct {
	session int
	lun     int
}

// Exit is the error of a program.
type Exit int

func (e Exit) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// ExitCode is what the program ended with.
func (e Exit) ExitCode() int { return int(e) }

// New returns a node without targets.
func New(t testing.TB) *Node {
	t.Helper()
	n := &Node{
		Root: t.TempDir(), targets: map[string]map[int]string{}, records: map[string]map[string]string{}, sessions: map[string]int{},
		disks: map[string]disk{},
	}
	for _, dir := range []string{"dev", "sys/block", "sys/class/iscsi_session", "sys/class/scsi_host", "sys/devices"} {
		if err := os.MkdirAll(filepath.Join(n.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		n.mu.Lock()
		for _, s := range n.sessions {
			n.endLocked(s)
		}
		n.mu.Unlock()
		n.wait.Wait()
	})
	return n
}

// Offer has a target offer a disk.
func (n *Node) Offer(iqn string, lun int, device string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.targets[iqn] == nil {
		n.targets[iqn] = map[int]string{}
	}
	n.targets[iqn][lun] = device
}

// Sessions returns the portals to which there are sessions.
func (n *Node) Sessions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for record := range n.sessions {
		out = append(out, strings.Fields(record)[1])
	}
	slices.Sort(out)
	return out
}

// Records returns what open-iscsi remembers: targets, portals and interfaces.
func (n *Node) Records() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.records))
}

// Setting returns one of a record's settings.
func (n *Node) Setting(record, key string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.records[record][key]
}

// Disks returns the names of the disks that the node has found.
func (n *Node) Disks() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.disks))
}

// Calls returns what iscsiadm was asked to do to nodes and interfaces.
func (n *Node) Calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

// Login makes a session as an administrator would.
func (n *Node) Login(t testing.TB, iqn, portal string) {
	t.Helper()
	for _, what := range [][]string{{"-o", "new"}, {"--login"}} {
		args := append([]string{"-m", "node", "-T", iqn, "-p", portal, "-I", "default"}, what...)
		if out, err := n.Run(t.Context(), "iscsiadm", args...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// Run is iscsiadm; the machine has no other programs.
func (n *Node) Run(_ context.Context, program string, args ...string) ([]byte, error) {
	if program != "iscsiadm" {
		return nil, &os.PathError{Op: "find", Path: program, Err: os.ErrNotExist}
	}
	if n.Refuse != nil {
		if err := n.Refuse(strings.Join(args, " ")); err != nil {
			return []byte("iscsiadm: refused"), err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, strings.Join(args, " "))
	options := map[string]string{}
	for i := 0; i < len(args); i++ {
		if strings.HasPrefix(args[i], "--") {
			options["-o"] = args[i]
		} else if i+1 < len(args) {
			options[args[i]] = args[i+1]
			i++
		}
	}
	record := "iface " + options["-I"]
	if options["-m"] == "node" {
		record = options["-T"] + " " + options["-p"] + " " + options["-I"]
	}
	switch options["-o"] {
	case "show":
		return []byte("# BEGIN RECORD\niface.iscsi_ifacename = " + options["-I"] + "\niface.net_ifacename = <empty>\niface.transport_name = tcp\n"), nil
	case "new":
		if n.records[record] != nil {
			return nil, Exit(15)
		}
		n.records[record] = map[string]string{}
	case "update":
		if n.records[record] == nil {
			return nil, Exit(21)
		}
		n.records[record][options["-n"]] = options["-v"]
	case "delete":
		if n.records[record] == nil {
			return nil, Exit(21)
		}
		delete(n.records, record)
	case "--login":
		return n.loginLocked(record, options)
	case "--logout":
		if s, ok := n.sessions[record]; ok {
			n.endLocked(s)
			delete(n.sessions, record)
			return nil, nil
		}
		return nil, Exit(21)
	default:
		return []byte("usage"), Exit(7)
	}
	return nil, nil
}

func (n *Node) loginLocked(record string, options map[string]string) ([]byte, error) {
	if n.records[record] == nil {
		return nil, Exit(21)
	}
	if _, ok := n.sessions[record]; ok {
		return nil, Exit(15)
	}
	if n.targets[options["-T"]] == nil {
		return []byte("iscsiadm: Could not login to target"), Exit(24)
	}
	address, port, err := net.SplitHostPort(options["-p"])
	if err != nil {
		return []byte(err.Error()), Exit(7)
	}
	n.made++
	number := n.made
	session := n.sessionDir(number)
	connection := filepath.Join(session, fmt.Sprintf("connection%d:0/iscsi_connection/connection%d:0", number, number))
	class := filepath.Join(n.Root, "sys/class/iscsi_session", fmt.Sprintf("session%d", number))
	host := filepath.Join(n.Root, "sys/class/scsi_host", fmt.Sprintf("host%d", number))
	for path, content := range map[string]string{
		connection + "/persistent_address": address, connection + "/persistent_port": port,
		class + "/targetname": options["-T"], class + "/ifacename": options["-I"],
	} {
		if err := write(path, content); err != nil {
			return []byte(err.Error()), Exit(1)
		}
	}
	if err := os.MkdirAll(host, 0o755); err != nil {
		return []byte(err.Error()), Exit(1)
	}
	if err := os.Symlink(session, class+"/device"); err != nil {
		return []byte(err.Error()), Exit(1)
	}
	if err := n.listen(host+"/scan", func(s string) { n.scanLocked(number, options["-T"], s) }); err != nil {
		return []byte(err.Error()), Exit(1)
	}
	n.sessions[record] = number
	return nil, nil
}

func write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content+"\n"), 0o600)
}

func (n *Node) sessionDir(number int) string {
	return filepath.Join(n.Root, "sys/devices", fmt.Sprintf("host%d/session%d", number, number))
}

// listen makes a file of sysfs: what is written to it takes effect, until the file is gone.
func (n *Node) listen(path string, do func(string)) error {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return err
	}
	n.wait.Go(func() {
		for {
			content, err := os.ReadFile(path)
			if err != nil || string(content) == "end" {
				return
			}
			n.mu.Lock()
			do(string(content))
			n.mu.Unlock()
		}
	})
	return nil
}

// unlistenLocked ends a file of sysfs.
func (n *Node) unlistenLocked(path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	_ = os.Remove(path)
	_, _ = f.WriteString("end")
	_ = f.Close()
}

// scanLocked finds a disk of a session.
func (n *Node) scanLocked(session int, iqn, what string) {
	var channel, id, lun int
	if _, err := fmt.Sscanf(what, "%d %d %d", &channel, &id, &lun); err != nil {
		return
	}
	device := n.targets[iqn][lun]
	var st unix.Stat_t
	if device == "" || slices.Contains(slices.Collect(maps.Values(n.disks)), disk{session, lun}) || unix.Stat(device, &st) != nil {
		return
	}
	n.made++
	name := "sd" + strconv.Itoa(n.made)
	dir := filepath.Join(n.sessionDir(session), "target0", fmt.Sprintf("%d:0:0:%d", session, lun), "block", name)
	control := filepath.Join(n.Root, "sys/block", name, "device")
	if os.MkdirAll(dir, 0o755) != nil || os.MkdirAll(control, 0o755) != nil {
		return
	}
	if unix.Mknod(filepath.Join(n.Root, "dev", name), unix.S_IFBLK|0o600, int(st.Rdev)) != nil {
		return
	}
	n.disks[name] = disk{session, lun}
	_ = n.listen(control+"/delete", func(string) { n.forgetLocked(name) })
}

// forgetLocked removes a disk.
func (n *Node) forgetLocked(name string) {
	d := n.disks[name]
	delete(n.disks, name)
	_ = os.RemoveAll(filepath.Join(n.sessionDir(d.session), "target0", fmt.Sprintf("%d:0:0:%d", d.session, d.lun)))
	_ = os.Remove(filepath.Join(n.Root, "dev", name))
	n.unlistenLocked(filepath.Join(n.Root, "sys/block", name, "device/delete"))
	_ = os.RemoveAll(filepath.Join(n.Root, "sys/block", name))
}

func (n *Node) endLocked(session int) {
	for name, d := range n.disks {
		if d.session == session {
			n.forgetLocked(name)
		}
	}
	_ = os.RemoveAll(filepath.Join(n.Root, "sys/class/iscsi_session", fmt.Sprintf("session%d", session)))
	n.unlistenLocked(filepath.Join(n.Root, "sys/class/scsi_host", fmt.Sprintf("host%d", session), "scan"))
	_ = os.RemoveAll(filepath.Join(n.Root, "sys/class/scsi_host", fmt.Sprintf("host%d", session)))
	_ = os.RemoveAll(n.sessionDir(session))
}
