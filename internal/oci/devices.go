package oci

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Device is a device node and the permitted access to it: any of r, w and m.
type Device struct {
	specs.LinuxDevice
	Access string
	Source string // path on the host
}

// nodes returns the nodes that the runtime makes. In a user namespace there are none, because
// nobody can make them there.
func (in Input) nodes() []specs.LinuxDevice {
	if in.Sandbox.IDMapping != nil {
		return nil
	}
	var out []specs.LinuxDevice
	for _, d := range in.devices() {
		out = append(out, d.LinuxDevice)
	}
	return out
}

// standard are the nodes that every runtime provides by itself (runtime-spec).
var standard = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx"}

// deviceMounts returns mounts of the host's nodes, for a container in a user namespace.
func (in Input) deviceMounts() []specs.Mount {
	if in.Sandbox.IDMapping == nil {
		return nil
	}
	var out []specs.Mount
	for _, d := range in.devices() {
		if slices.Contains(standard, d.Path) {
			continue
		}
		out = append(out, specs.Mount{Destination: d.Path, Type: "bind", Source: d.Source, Options: []string{"bind", "rprivate", "nosuid", "noexec"}})
	}
	return out
}

// devices returns the nodes of the container beyond the runtime's standard ones.
func (in Input) devices() []Device {
	if in.security().GetPrivileged() {
		return in.Host.Devices
	}
	return in.Devices
}

// deviceRules returns the device rules of the container's cgroup: deny everything; then allow
// making any node (which means nothing without CAP_MKNOD), the standard nodes, terminals, and the
// container's own devices.
func deviceRules(privileged bool, own []Device) []specs.LinuxDeviceCgroup {
	if privileged {
		return []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}
	rules := []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		{Allow: true, Type: "c", Access: "m"},
		{Allow: true, Type: "b", Access: "m"},
	}
	for _, d := range [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 1}, {5, 2}} {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: new(d[0]), Minor: new(d[1]), Access: "rwm"})
	}
	rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: new(int64(136)), Access: "rwm"}) // /dev/pts
	for _, d := range own {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: new(d.Major), Minor: new(d.Minor), Access: d.Access})
	}
	return rules
}

// LookupDevices finds the pod's devices on the host. A folder stands for all the devices in it.
func LookupDevices(devices []*runtimeapi.Device) ([]Device, error) {
	var all []Device
	for _, d := range devices {
		host, err := filepath.EvalSymlinks(d.GetHostPath())
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", d.GetHostPath(), err)
		}
		found, err := devicesAt(host, d.GetContainerPath())
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", d.GetHostPath(), err)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("device %s: not a device node", d.GetHostPath())
		}
		for _, f := range found {
			if p := d.GetPermissions(); p != "" {
				f.Access = p
			}
			all = append(all, f)
		}
	}
	return all, nil
}

// HostDevices lists the devices in /dev for privileged containers, without those that each
// container has of its own.
func HostDevices() ([]Device, error) { return devicesAt("/dev", "/dev") }

var ownDev = map[string]bool{"/dev/pts": true, "/dev/shm": true, "/dev/mqueue": true, "/dev/fd": true, "/dev/console": true, "/dev/.udev": true, "/dev/.lxc": true}

func devicesAt(host, inside string) ([]Device, error) {
	var all []Device
	err := filepath.WalkDir(host, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) && p != host {
				return nil // gone in the meantime
			}
			return err
		}
		if ownDev[p] && p != host {
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if e.Type()&fs.ModeDevice == 0 {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(host, p)
		if err != nil {
			return err
		}
		all = append(all, Device{device(filepath.Join(inside, rel), st), "rwm", p})
		return nil
	})
	return all, err
}

func device(path string, st unix.Stat_t) specs.LinuxDevice {
	typ := "c"
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		typ = "b"
	}
	mode := fs.FileMode(st.Mode & 0o777)
	uid, gid := st.Uid, st.Gid
	return specs.LinuxDevice{
		Path: path, Type: typ, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
		FileMode: &mode, UID: &uid, GID: &gid,
	}
}
