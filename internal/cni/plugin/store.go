package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// defaultDataDir is the same as upstream's, and so are the files in it: one plugin can take over
// from the other while containers run.
const defaultDataDir = "/var/lib/cni/networks"

// owner identifies an attachment: an interface of a container.
type owner struct{ id, ifname string }

// store keeps the leases of a network: one file per address, which holds the owner. While it is
// open, the folder is locked against all other processes.
type store struct {
	dir    string
	lock   *os.File
	leases map[netip.Addr]owner // ifname is "" in files of very old versions
	broken []string             // files whose owner cannot be read
}

const lastFile = "last_reserved_ip."

// containerID matches the IDs that the CNI spec allows. A file with anything else has no owner:
// the machine crashed while it was written, and no container outlived that.
var containerID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

func openStore(dataDir, network string) (*store, error) {
	if dataDir == "" {
		dataDir = defaultDataDir
	}
	s := &store{dir: filepath.Join(dataDir, network), leases: map[netip.Addr]owner{}}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("open leases: %w", err)
	}
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("open leases: %w", err)
	}
	for {
		err = unix.Flock(int(s.lock.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		err = s.load()
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("open leases %s: %w", s.dir, err)
	}
	return s, nil
}

func (s *store) close() { _ = s.lock.Close() } // closing it releases the lock

func (s *store) load() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil || !e.Type().IsRegular() {
			continue
		}
		doc, err := safepath.ReadFile(filepath.Join(s.dir, e.Name()), safepath.ConfigSize)
		if err != nil {
			return err
		}
		if o, ok := parseLease(doc); ok {
			s.leases[a] = o
		} else {
			s.broken = append(s.broken, e.Name())
		}
	}
	return nil
}

// parseLease parses "ID\r\nIFNAME", or the ID alone.
func parseLease(doc []byte) (owner, bool) {
	id, ifname, _ := strings.Cut(strings.TrimSpace(string(doc)), "\n")
	o := owner{strings.TrimSpace(id), strings.TrimSpace(ifname)}
	return o, containerID.MatchString(o.id)
}

// matches reports whether a lease belongs to the owner; a lease of a very old version names only
// the container.
func (o owner) matches(lease owner) bool {
	return o.id == lease.id && (lease.ifname == "" || o.ifname == lease.ifname)
}

func (s *store) leasesOf(o owner) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.leases {
		if o.matches(l) {
			held = append(held, a)
		}
	}
	slices.SortFunc(held, netip.Addr.Compare)
	return held
}

// lease leases an address from the set: the requested one, or the next free one after the last
// one leased, so that addresses rest after use.
func (s *store) lease(o owner, set rangeSet, index int, want netip.Addr) (netip.Addr, error) {
	lastPath := filepath.Join(s.dir, lastFile+strconv.Itoa(index))
	if want.IsValid() {
		r := set.find(want)
		if want == r.gateway {
			return want, fmt.Errorf("requested ip %s is subnet's gateway", want)
		}
		if l, taken := s.leases[want]; taken {
			return want, fmt.Errorf("requested IP address %s is not available in range set %s: container %s has it", want, set, l.id)
		}
		return want, s.write(want, o, lastPath)
	}
	last, _ := safepath.ReadFile(lastPath, safepath.ConfigSize) // only a hint, whatever it says
	lastAddr, _ := netip.ParseAddr(strings.TrimSpace(string(last)))
	var free netip.Addr
	set.each(lastAddr, func(a netip.Addr, r *ipRange) bool {
		if _, taken := s.leases[a]; taken || a == r.gateway {
			return false
		}
		free = a
		return true
	})
	if !free.IsValid() {
		return free, fmt.Errorf("no IP addresses available in range set: %s; %d are leased in %s: remove containers, or configure a larger range",
			set, len(s.leases), s.dir)
	}
	return free, s.write(free, o, lastPath)
}

// write stores a lease in one step: no other process sees half of it, and a process that is
// killed leaves no half of it.
func (s *store) write(a netip.Addr, o owner, lastPath string) error {
	if err := record.WriteFileCached(filepath.Join(s.dir, a.String()), []byte(o.id+"\r\n"+o.ifname), 0o600); err != nil {
		return err
	}
	s.leases[a] = o
	return os.WriteFile(lastPath, []byte(a.String()), 0o600)
}

// release releases whatever the owner holds.
func (s *store) release(o owner) error {
	for _, a := range s.leasesOf(o) {
		if err := s.remove(a.String()); err != nil {
			return err
		}
		delete(s.leases, a)
	}
	return nil
}

func (s *store) remove(name string) error {
	if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// collect releases what none of the owners holds.
func (s *store) collect(valid []owner) error {
	for _, a := range slices.SortedFunc(maps.Keys(s.leases), netip.Addr.Compare) {
		l := s.leases[a]
		if slices.ContainsFunc(valid, func(o owner) bool { return o.matches(l) }) {
			continue
		}
		if err := s.remove(a.String()); err != nil {
			return err
		}
	}
	for _, name := range s.broken {
		if err := s.remove(name); err != nil {
			return err
		}
	}
	return nil
}
