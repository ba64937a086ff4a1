package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/record"
)

// lease ties an address to a sandbox. The address is free again only when the veth that carried
// it is gone: the kernel removes the veth some time after the namespace.
//
//	free ── acquire ──▶ held ── release ──▶ draining ── veth gone ──▶ free
type lease struct {
	Addr     netip.Addr `json:"addr"`
	Owner    string     `json:"owner"` // sandbox ID
	Link     string     `json:"link"`  // host side of its veth
	Draining bool       `json:"draining,omitempty"`
}

// leases hands out the addresses of a subnet, each at most once. The truth is one file per lease,
// written before the address is used.
type leases struct {
	dir      string
	subnet   netip.Prefix
	linkGone func(name string) (bool, error)

	mu      sync.Mutex
	byAddr  map[netip.Addr]lease
	byOwner map[string]netip.Addr
	cursor  netip.Addr // last address handed out: the next search starts after it
}

// openLeases reads the leases in dir. A file that does not decode (the machine crashed) cannot
// have a live owner and is dropped.
func openLeases(dir string, subnet netip.Prefix, linkGone func(string) (bool, error)) (*leases, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &leases{
		dir: dir, subnet: subnet.Masked(), linkGone: linkGone,
		byAddr: map[netip.Addr]lease{}, byOwner: map[string]netip.Addr{},
	}
	l.cursor = l.gateway()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := l.load(e.Name()); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *leases) load(name string) error {
	path := filepath.Join(l.dir, name)
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var x lease
	if err := json.Unmarshal(doc, &x); err != nil || x.Addr.String() != name {
		return os.Remove(path)
	}
	l.byAddr[x.Addr] = x
	if !x.Draining {
		l.byOwner[x.Owner] = x.Addr
	}
	return nil
}

// gateway returns the first address of the subnet: the bridge's own.
func (l *leases) gateway() netip.Addr { return l.subnet.Addr().Next() }

// acquire leases an address to the owner; a repeated call returns the same one.
func (l *leases) acquire(owner, link string) (netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := l.byOwner[owner]; ok {
		return a, nil
	}
	a, err := l.freeLocked()
	if err != nil {
		return netip.Addr{}, err
	}
	x := lease{Addr: a, Owner: owner, Link: link}
	if err := l.storeLocked(x); err != nil {
		return netip.Addr{}, fmt.Errorf("lease %s: %w", a, err)
	}
	l.byOwner[owner] = a
	l.cursor = a
	return a, nil
}

// adopt leases to a live owner the address that it is known to have, if the lease was lost. An
// address that somebody else holds stays theirs.
func (l *leases) adopt(owner, link string, a netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.byOwner[owner]; ok {
		return nil
	}
	if x, taken := l.byAddr[a]; !l.subnet.Contains(a) || taken && !x.Draining {
		return nil
	}
	if err := l.storeLocked(lease{Addr: a, Owner: owner, Link: link}); err != nil {
		return fmt.Errorf("lease %s: %w", a, err)
	}
	l.byOwner[owner] = a
	return nil
}

// freeLocked searches round robin, so that a released address rests as long as possible.
func (l *leases) freeLocked() (netip.Addr, error) {
	last := rtnl.LastAddr(l.subnet)
	for a := l.cursor.Next(); ; a = a.Next() {
		if !l.subnet.Contains(a) || a == last { // the last IPv4 address is for broadcasts
			a = l.gateway()
		} else if a != l.gateway() {
			free, err := l.isFreeLocked(a)
			if err != nil {
				return netip.Addr{}, err
			}
			if free {
				return a, nil
			}
		}
		if a == l.cursor {
			return netip.Addr{}, fmt.Errorf("no free address in %s: %d in use; remove pods, or configure a larger pod network",
				l.subnet, len(l.byAddr))
		}
	}
}

func (l *leases) isFreeLocked(a netip.Addr) (bool, error) {
	x, taken := l.byAddr[a]
	if !taken {
		return true, nil
	}
	if !x.Draining {
		return false, nil
	}
	return l.drainLocked(x)
}

// drainLocked frees a draining lease if its veth is gone.
func (l *leases) drainLocked(x lease) (bool, error) {
	gone, err := l.linkGone(x.Link)
	if err != nil || !gone {
		return false, err
	}
	if err := os.Remove(filepath.Join(l.dir, x.Addr.String())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	delete(l.byAddr, x.Addr)
	return true, nil
}

// release releases the owner's address once its veth is gone. It is not an error if the owner has
// no lease.
func (l *leases) release(owner string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := l.byOwner[owner]; ok {
		x := l.byAddr[a]
		x.Draining = true
		if err := l.storeLocked(x); err != nil {
			return fmt.Errorf("release %s: %w", a, err)
		}
		delete(l.byOwner, owner)
	}
	return nil
}

// reclaim frees draining leases whose veth is gone, and returns how many still drain. It looks at
// no more than limit leases; 0 means all.
func (l *leases) reclaim(limit int) (draining int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	looked := 0
	for _, x := range l.byAddr {
		if !x.Draining {
			continue
		}
		if limit > 0 && looked >= limit {
			draining++
			continue
		}
		looked++
		free, err := l.drainLocked(x)
		if err != nil {
			return draining, err
		}
		if !free {
			draining++
		}
	}
	return draining, nil
}

// owners returns the address of each owner.
func (l *leases) owners() map[string]netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := make(map[string]netip.Addr, len(l.byOwner))
	maps.Copy(m, l.byOwner)
	return m
}

// links returns the veths of draining leases.
func (l *leases) links() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, x := range l.byAddr {
		if x.Draining {
			names = append(names, x.Link)
		}
	}
	return names
}

// storeLocked replaces the lease's file atomically. It does not wait for the disk: a lease only
// has to outlive the process, because after a crash of the machine no namespace is left that
// could use the address.
func (l *leases) storeLocked(x lease) error {
	doc, err := json.Marshal(x)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, x.Addr.String())
	if err := record.WriteFileCached(path, doc, 0o600); err != nil {
		return err
	}
	l.byAddr[x.Addr] = x
	return nil
}
