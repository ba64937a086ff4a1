package disks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Target is a disk of an iSCSI target, and the ways to it.
type Target struct {
	// Portals are addresses with ports, the first of which names the target.
	Portals []string
	IQN     string
	LUN     int32
	// Interface is the one of open-iscsi to log in by. If Initiator is set, it is made, as a copy of Template with that name.
	Interface, Template, Initiator string `json:",omitempty"`
}

// Key is the target without the disk: sessions are shared by the disks of a target.
func (t *Target) Key() string { return t.IQN + " " + t.Interface }

// DefaultPort is that of iSCSI (RFC 7143).
const DefaultPort = "3260"

// Portal returns an address with a port.
func Portal(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), DefaultPort)
}

// Check refuses what open-iscsi would take for something else: it makes files of these names.
func (t *Target) Check() error {
	for _, s := range append([]string{t.IQN, t.Interface, t.Template, t.Initiator}, t.Portals...) {
		if strings.HasPrefix(s, "-") || strings.ContainsAny(s, "/ \t\n\x00") {
			return fmt.Errorf("%q cannot be part of an iSCSI target", s)
		}
	}
	return nil
}

// iscsiadm is the program of open-iscsi.
const iscsiadm = "iscsiadm"

// What iscsiadm exits with when there is nothing to undo, and when there is a session already (open-iscsi's iscsi_err.h).
const (
	noSession = 2
	exists    = 15
	noObject  = 21
)

func (n Node) iscsiadm(ctx context.Context, args ...string) error {
	out, err := n.run(ctx, iscsiadm, args...)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("this node has no iSCSI volumes: it has no iscsiadm (in Debian's package open-iscsi, or iscsi-initiator-utils elsewhere)")
	}
	if err != nil {
		return fmt.Errorf("iscsiadm: %w: %s", err, oneLine(out))
	}
	return nil
}

// oneLine is what a program said, as it fits into an event.
func oneLine(out []byte) string {
	return strings.ReplaceAll(string(bytes.TrimSpace(out)), "\n", "; ")
}

// unless returns no error if a program ended with one of the codes.
func unless(err error, codes ...int) error {
	if exit, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok && slices.Contains(codes, exit.ExitCode()) {
		return nil
	}
	return err
}

// session is one that the kernel has.
type session struct {
	dir  string // in sysfs
	host string // number of the SCSI host
}

// Sessions returns the portals of a target to which the node has sessions.
func (n Node) Sessions(t *Target) ([]string, error) {
	all, err := n.sessions(t)
	return slices.Sorted(maps.Keys(all)), err
}

// sessions returns the sessions with a target, by its portals.
func (n Node) sessions(t *Target) (map[string]session, error) {
	all, err := filepath.Glob(n.sys("class", "iscsi_session", "session*"))
	if err != nil {
		return nil, err
	}
	out := map[string]session{}
	for _, dir := range all {
		if read(dir, "targetname") != t.IQN || read(dir, "ifacename") != t.Interface {
			continue
		}
		// .../hostH/sessionN/iscsi_session/sessionN
		real, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if errors.Is(err, fs.ErrNotExist) { // it has just ended
			continue
		}
		if err != nil {
			return nil, err
		}
		host, ok := strings.CutPrefix(filepath.Base(filepath.Dir(real)), "host")
		if !ok {
			continue
		}
		connections, err := filepath.Glob(filepath.Join(real, "connection*", "iscsi_connection", "connection*"))
		if err != nil {
			return nil, err
		}
		for _, c := range connections {
			for _, portal := range t.Portals {
				if samePortal(portal, read(c, "persistent_address"), read(c, "persistent_port")) ||
					samePortal(portal, read(c, "address"), read(c, "port")) {
					out[portal] = session{real, host}
				}
			}
		}
	}
	return out, nil
}

func read(path ...string) string {
	content, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return "" // of what has gone meanwhile
	}
	return strings.TrimSpace(string(content))
}

func samePortal(portal, address, port string) bool {
	host, p, err := net.SplitHostPort(portal)
	if err != nil || p != port {
		return false
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host == address
	}
	b, err := netip.ParseAddr(strings.Trim(address, "[]"))
	return err == nil && a.Unmap() == b.Unmap()
}

// Login logs in to a target where the node has no session, and returns the device of the disk. Before a session is made,
// it is announced. secrets are the settings of open-iscsi for CHAP.
func (n Node) Login(ctx context.Context, t *Target, secrets map[string]string, announce func(portal string) error) (string, error) {
	if err := t.Check(); err != nil {
		return "", err
	}
	var devices []string
	var last error
	for _, portal := range t.Portals {
		device, err := n.reach(ctx, t, portal, secrets, announce)
		if err != nil {
			last = fmt.Errorf("portal %s: %w", portal, err)
			continue
		}
		if !slices.Contains(devices, device) {
			devices = append(devices, device)
		}
	}
	if len(devices) == 0 {
		return "", fmt.Errorf("failed to get any path for iscsi disk, last err seen: %w", last)
	}
	device, err := n.together(ctx, devices)
	if err != nil {
		return "", err
	}
	return n.device(device), nil
}

// reach returns the name of the disk by one of the portals.
func (n Node) reach(ctx context.Context, t *Target, portal string, secrets map[string]string, announce func(string) error) (string, error) {
	all, err := n.sessions(t)
	if err != nil {
		return "", err
	}
	if _, there := all[portal]; !there {
		if err := announce(portal); err != nil {
			return "", err
		}
		if err := n.loginBy(ctx, t, portal, secrets); err != nil {
			return "", err
		}
		if all, err = n.sessions(t); err != nil {
			return "", err
		}
	}
	s, there := all[portal]
	if !there {
		return "", fmt.Errorf("logged in to %s, and there is no session of that portal: the target answers from another address", t.IQN)
	}
	disk, err := appears(ctx, func() (string, error) {
		// This disk and no other: what others have on the target is not for this node.
		scan := fmt.Sprintf("0 0 %d", t.LUN)
		if err := os.WriteFile(n.sys("class", "scsi_host", "host"+s.host, "scan"), []byte(scan), 0o200); err != nil {
			return "", fmt.Errorf("look for LUN %d: %w", t.LUN, err)
		}
		names, err := s.disks(t.LUN)
		if err != nil || len(names) == 0 {
			return "", err
		}
		if _, err := os.Stat(n.device(names[0])); err != nil {
			return "", nil //nolint:nilerr // its file is about to be made
		}
		return names[0], nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return "", fmt.Errorf("Timed out waiting for LUN %d of %s after %s: the target does not have it, or does not give it to this node", //nolint:staticcheck // upstream's words
			t.LUN, t.IQN, appearTime)
	}
	return disk, err
}

// disks returns the names of the disks that a LUN is in a session.
func (s session) disks(lun int32) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(s.dir, "target*", "*:*:*:"+strconv.Itoa(int(lun)), "block", "*"))
	var names []string
	for _, path := range all {
		names = append(names, filepath.Base(path))
	}
	return names, err
}

// loginBy makes a session with a portal. The record of the node is made for it: it is not asked which targets there are, so
// that no others come to be known.
func (n Node) loginBy(ctx context.Context, t *Target, portal string, secrets map[string]string) error {
	if err := n.makeInterface(ctx, t); err != nil {
		return err
	}
	node := []string{"-m", "node", "-T", t.IQN, "-p", portal, "-I", t.Interface}
	with := func(more ...string) []string { return append(slices.Clone(node), more...) }
	if err := unless(n.iscsiadm(ctx, with("-o", "new")...), exists); err != nil {
		return err
	}
	settings := map[string]string{
		"node.session.scan": "manual", "node.startup": "manual",
		"node.session.initial_login_retry_max": "1", // whoever calls tries again, and tells the pod meanwhile
	}
	maps.Copy(settings, secrets)
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if err := n.iscsiadm(ctx, with("-o", "update", "-n", key, "-v", settings[key])...); err != nil {
			return fmt.Errorf("set %s: %w", key, err)
		}
	}
	if err := unless(n.iscsiadm(ctx, with("--login")...), exists); err != nil {
		return errors.Join(err, unless(n.iscsiadm(ctx, with("-o", "delete")...), noObject))
	}
	return nil
}

// makeInterface makes the interface that logs in with a name of the volume's own.
func (n Node) makeInterface(ctx context.Context, t *Target) error {
	if t.Initiator == "" {
		return nil
	}
	out, err := n.run(ctx, iscsiadm, "-m", "iface", "-I", t.Template, "-o", "show")
	if err != nil {
		return fmt.Errorf("iscsiadm: no interface %s: %w: %s", t.Template, err, oneLine(out))
	}
	if err := unless(n.iscsiadm(ctx, "-m", "iface", "-I", t.Interface, "-o", "new"), exists); err != nil {
		return err
	}
	settings := interfaceSettings(string(out))
	settings["iface.initiatorname"] = t.Initiator
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if err := n.iscsiadm(ctx, "-m", "iface", "-I", t.Interface, "-o", "update", "-n", key, "-v", settings[key]); err != nil {
			return err
		}
	}
	return nil
}

// interfaceSettings reads what iscsiadm shows of an interface, without its name.
func interfaceSettings(shown string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(shown) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if ok && strings.HasPrefix(key, "iface.") && key != "iface.iscsi_ifacename" && value != "<empty>" {
			out[key] = value
		}
	}
	return out
}

// Leave has the node forget the disk, and logs out of the portals that are to be left.
func (n Node) Leave(ctx context.Context, t *Target, portals []string) error {
	all, err := n.sessions(t)
	if err != nil {
		return err
	}
	var names []string
	for portal, s := range all {
		if !slices.Contains(portals, portal) {
			continue // it was there before, and so may the disk have been
		}
		disks, err := s.disks(t.LUN)
		if err != nil {
			return err
		}
		names = append(names, disks...)
	}
	return n.drop(ctx, names)
}

// Logout ends the sessions with some portals of a target, which no disk needs any more.
func (n Node) Logout(ctx context.Context, t *Target, portals []string) error {
	for _, portal := range portals {
		node := []string{"-m", "node", "-T", t.IQN, "-p", portal, "-I", t.Interface}
		for _, what := range [][]string{{"--logout"}, {"-o", "delete"}} {
			if err := unless(n.iscsiadm(ctx, append(slices.Clone(node), what...)...), noSession, noObject); err != nil {
				return err
			}
		}
	}
	if t.Initiator == "" || len(portals) == 0 {
		return nil
	}
	return unless(n.iscsiadm(ctx, "-m", "iface", "-I", t.Interface, "-o", "delete"), noSession, noObject)
}
