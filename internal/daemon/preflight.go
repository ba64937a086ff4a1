package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/config"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/record"
)

// minFree is how much room a node needs for its first start: etcd's files hold 110 MiB from the
// beginning, and nothing new is accepted below 48.
const minFree = 192 << 20

// preflight finds what would stop a start halfway, before anything is made.
func preflight(ctx context.Context, cfg *config.Config) error {
	if err := RequireRoot(); err != nil {
		return err
	}
	if pid, err := RunningPID(cfg.DataDir); err == nil {
		return fmt.Errorf("wherry is already running with --data-dir %s (pid %d); stop it with `wherry down --data-dir %s`, or use another data dir", cfg.DataDir, pid, cfg.DataDir)
	}
	if err := checkRole(cfg); err != nil {
		return err
	}
	if _, err := controllerOptions(cfg.ControllerArgs); err != nil {
		return err
	}
	if err := checkKubeletArgs(cfg.KubeletArgs); err != nil {
		return err
	}
	if cfg.RuntimeEndpoint == "" && cfg.Role.HasNode() {
		cc, err := criConfig(cfg)
		if err != nil {
			return err
		}
		if err := cc.Check(); err != nil {
			return err
		}
	}
	if err := checkMode(cfg); err != nil {
		return err
	}
	if err := checkRoom(cfg.DataDir); err != nil {
		return err
	}
	ports := map[string]int{}
	if cfg.Role.HasServer() {
		ports["secure-port"] = cfg.SecurePort
	}
	if cfg.Role.HasNode() {
		ports["kubelet-port"] = cfg.KubeletPort
	}
	for flag, port := range ports {
		if err := checkPort(ctx, cfg.BindAddress, port, flag); err != nil {
			return err
		}
	}
	if cfg.RuntimeEndpoint != "" || cfg.Role != "" || !cfg.OwnRange() {
		return nil
	}
	return checkPodNetwork(cfg)
}

// checkRole refuses data of another role: what was there before would be left alone, and in the dark.
func checkRole(cfg *config.Config) error {
	var last config.Config
	if _, err := record.Read(instanceFile(cfg.DataDir), &last); err != nil {
		return nil //nolint:nilerr // there is none that anybody could read
	}
	switch {
	case last.Role.HasServer() && !cfg.Role.HasServer():
		return fmt.Errorf("%s has the data of a server: a node that joins another one needs a --data-dir of its own; or take the server down with `wherry down --purge`", cfg.DataDir)
	case !last.Role.HasServer() && cfg.Role.HasServer():
		return fmt.Errorf("%s has the data of a node that has joined %s: start it with `wherry join %s`; or take it out with `wherry down --purge`", cfg.DataDir, last.Server, last.Server)
	case last.Role.HasNode() && !cfg.Role.HasNode():
		if fresh, err := isFresh(cfg.RunDir); err != nil || !fresh {
			return errors.Join(err, fmt.Errorf("the node of %s may still have pods: run `wherry down` before it becomes a server without a node", cfg.DataDir))
		}
	}
	return nil
}

// checkPodNetwork refuses a pod network that the machine already has elsewhere: on
// another instance's bridge, say. Packets for the pods would go there.
func checkPodNetwork(cfg *config.Config) error {
	pods, pods2, err := config.PodNetworks(cfg.PodCIDR)
	if err != nil {
		return err
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list the machine's routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		dst := netip.PrefixFrom(ip.Unmap(), ones)
		if !ok || ones == 0 || !pods.Overlaps(dst) && !pods2.Overlaps(dst) {
			continue
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil || link.Attrs().Name == "wh-"+cfg.InstanceID() {
			continue // the link went away meanwhile, or is our own
		}
		return fmt.Errorf("the pod network %s overlaps %s, which is on %s; choose another --pod-cidr", cfg.PodCIDR, r.Dst, link.Attrs().Name)
	}
	return nil
}

// RequireRoot returns an error for other users that says what to do.
func RequireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("wherry needs root, for namespaces, mounts and cgroups; run it with sudo")
	}
	return nil
}

// checkRoom checks the file system that dir is on, or will be. A node that has its data already
// holds the room that a start needs, and on a full disk it is the node that can free some.
func checkRoom(dir string) error {
	if _, err := os.Stat(apiserver.DataIn(dir)); err == nil {
		return nil
	}
	room, err := disk.Look(dir)
	if err != nil {
		return err
	}
	if room.Free < minFree {
		return fmt.Errorf("the disk of %s is full: %d MiB free, %d MiB needed; free some space, or use another --data-dir", dir, room.Free>>20, minFree>>20)
	}
	return nil
}

func checkPort(ctx context.Context, host string, port int, flag string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", hostPort(host, port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is in use by another program; stop that one, or choose another --%s", port, flag)
	case err != nil:
		return fmt.Errorf("cannot listen on %s (--%s): %w", hostPort(host, port), flag, err)
	}
	return l.Close()
}
