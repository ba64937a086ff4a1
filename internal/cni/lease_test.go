package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestNoAddressIsGivenTwice(t *testing.T) {
	dir := t.TempDir()
	subnet := netip.MustParsePrefix("10.1.2.0/24")
	never := func(string) (bool, error) { return false, nil }
	l, err := openLeases(dir, subnet, never)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for i := range 253 {
		wg.Go(func() {
			owner := fmt.Sprint("pod", i)
			a, err := l.acquire(owner, "veth")
			mu.Lock()
			defer mu.Unlock()
			if other, dup := seen[a]; err != nil || dup || !subnet.Contains(a) {
				t.Errorf("%s: %v of %s, %v", owner, a, other, err)
			}
			seen[a] = owner
		})
	}
	wg.Wait()
	for _, reserved := range []string{"10.1.2.0", "10.1.2.1", "10.1.2.255"} {
		if owner, ok := seen[netip.MustParseAddr(reserved)]; ok {
			t.Errorf("%s was given to %s", reserved, owner)
		}
	}
	if _, err := l.acquire("one more", "veth"); err == nil {
		t.Error("more addresses than there are")
	}
	l, err = openLeases(dir, subnet, never) // as after kill -9
	if err != nil {
		t.Fatal(err)
	}
	for a, owner := range seen {
		if again, err := l.acquire(owner, "veth"); err != nil || again != a {
			t.Errorf("%s had %s and has %s, %v", owner, a, again, err)
		}
	}
}

func TestReleasedAddressesRest(t *testing.T) {
	gone := func(string) (bool, error) { return true, nil }
	l, err := openLeases(t.TempDir(), netip.MustParsePrefix("10.1.2.0/28"), gone)
	if err != nil {
		t.Fatal(err)
	}
	first, err := l.acquire("a", "v")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.release("a"); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		a, err := l.acquire(fmt.Sprint(i), "v")
		if err != nil || a == first {
			t.Fatalf("pod %d: %s, %v; %s was to be used last", i, a, err, first)
		}
	}
	if a, err := l.acquire("last", "v"); err != nil || a != first {
		t.Errorf("last: %s, %v; want %s", a, err, first)
	}
}

func TestUnreadableLeaseIsDropped(t *testing.T) {
	dir := t.TempDir()
	for name, doc := range map[string]string{"10.1.2.2": "", "10.1.2.3": `{"addr":"10.1.2.4","owner":"x"}`, "new": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := openLeases(dir, netip.MustParsePrefix("10.1.2.0/24"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.byAddr) != 0 {
		t.Errorf("leases %v", l.byAddr)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("files %v", left)
	}
}

func FuzzLeaseFile(f *testing.F) {
	f.Add([]byte(`{"addr":"10.1.2.3","owner":"a","link":"v","draining":true}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "10.1.2.3"), doc, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := openLeases(dir, netip.MustParsePrefix("10.1.2.0/24"), func(string) (bool, error) { return true, nil })
		if err != nil {
			t.Fatal(err)
		}
		if a, err := l.acquire("b", "v"); err != nil || !a.IsValid() {
			t.Fatalf("%v, %v", a, err)
		}
	})
}
