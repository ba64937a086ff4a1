package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wherry.dev/internal/pki"
)

// servers are etcds of several servers on the loopback.
type servers struct {
	t     *testing.T
	dir   string
	ca    *pki.CA
	ports map[string]int
}

func newServers(t *testing.T) *servers {
	t.Helper()
	s := &servers{t: t, dir: t.TempDir(), ports: map[string]int{}}
	var err error
	if s.ca, err = pki.LoadOrCreateCA(filepath.Join(s.dir, "pki"), "ca", "etcd-ca", time.Now()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *servers) data(name string) string { return filepath.Join(s.dir, name) }

func (s *servers) peers(name string) *Peers {
	s.t.Helper()
	if s.ports[name] == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.t.Fatal(err)
		}
		s.ports[name] = l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
	}
	leaf := pki.Leaf{CommonName: name, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true}
	cert, key, err := s.ca.Issue(filepath.Join(s.dir, "pki"), name, leaf, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	return &Peers{Name: name, Address: fmt.Sprintf("127.0.0.1:%d", s.ports[name]), CertFile: cert, KeyFile: key, CAFile: s.ca.CertFile}
}

// open starts a server's etcd; the test closes it, or the end does.
func (s *servers) open(name string) *Backend {
	s.t.Helper()
	b, err := Open(s.t.Context(), Config{Dir: s.data(name), Peers: s.peers(name)})
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	s.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			s.t.Errorf("close %s: %v", name, err)
		}
	})
	return b
}

// first starts the first server, a, which may have others.
func (s *servers) first() *Backend {
	s.t.Helper()
	if err := os.MkdirAll(s.data("a"), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := WillHaveMembers(s.data("a")); err != nil {
		s.t.Fatal(err)
	}
	return s.open("a")
}

// join starts another one, which learns of the others from the one that is asked.
func (s *servers) join(name string, asked *Backend) *Backend {
	s.t.Helper()
	initial := s.add(name, asked)
	if err := Join(s.data(name), initial); err != nil {
		s.t.Fatal(err)
	}
	return s.open(name)
}

// add asks until the members can change: etcd wants to see all of them for five seconds first.
func (s *servers) add(name string, asked *Backend) string {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		initial, err := asked.AddMember(s.t.Context(), name, s.peers(name).Address)
		if err == nil {
			return initial
		}
		if !errors.Is(err, ErrBusy) || time.Now().After(end) {
			s.t.Fatalf("add %s: %v", name, err)
		}
	}
}

// testKey is what tests write.
const testKey = "/registry/x"

func putTo(t *testing.T, b *Backend, value string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := b.client.Put(ctx, testKey, value)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("put: %v", err)
		}
	}
}

func wantValue(t *testing.T, b *Backend, value string) {
	t.Helper()
	got, err := b.client.KV.Get(t.Context(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != value {
		t.Errorf("%v, want %s", got.Kvs, value)
	}
}

func shut(t *testing.T, b *Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestServersShareTheirData(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	// A server that was alone before, whose data has neither its name nor its address.
	lone, err := Open(t.Context(), Config{Dir: s.data("a"), Peers: s.peers("a")})
	if err != nil {
		t.Fatal(err)
	}
	putTo(t, lone, "alone")
	if _, err := lone.AddMember(t.Context(), "b", s.peers("b").Address); !errors.Is(err, ErrLone) {
		t.Errorf("alone: %v, want %v", err, ErrLone)
	}
	shut(t, lone)

	a := s.first()
	b := s.join("b", a)
	c := s.join("c", b)
	for _, m := range []*Backend{a, b, c} {
		wantValue(t, m, "alone")
	}
	putTo(t, c, "three")
	wantValue(t, a, "three")
	list, err := b.Members()
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	leaders := 0
	for i, m := range list {
		if m.Name != string(rune('a'+i)) || m.Learner || !m.Answers || m.Address != s.peers(m.Name).Address || m.Self != (m.Name == "b") {
			t.Errorf("%+v", m)
		}
		if m.Leader {
			leaders++
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders: %+v", leaders, list)
	}
	if _, err := a.AddMember(t.Context(), "b", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "answers") {
		t.Errorf("a second server of the same name: %v", err)
	}

	shut(t, a) // it leads, or not
	putTo(t, b, "two of three")
	wantValue(t, c, "two of three")
	a = s.open("a")
	wantValue(t, a, "two of three")
}

func TestServersWithoutMajoritySaySo(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	a := s.first()
	b := s.join("b", a)
	putTo(t, a, "1")
	shut(t, b)
	var err error
	for end := time.Now().Add(30 * time.Second); !apierrors.IsServiceUnavailable(err) && time.Now().Before(end); {
		_, err = a.client.KV.Get(t.Context(), "/registry/x")
	}
	if err == nil || !strings.Contains(err.Error(), "2 of its 2 servers are needed, and these do not answer: b ("+s.peers("b").Address+")") {
		t.Fatal(err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 1 {
		t.Errorf("clients are not told to ask again: %v", err)
	}
	began := time.Now()
	if _, err := a.client.KV.Get(t.Context(), "/registry/x"); err == nil || time.Since(began) > electPatience {
		t.Errorf("the next request waits, too: %v after %s", err, time.Since(began))
	}

	// What is there can still be saved, and another cluster be made of it.
	var saved bytes.Buffer
	if err := a.Snapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved")
	if err := os.WriteFile(file, saved.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	shut(t, a)
	if _, err := RestoreSnapshot(Restore{Dir: s.data("a"), Snapshot: file, Replace: true, Bump: DefaultBump}); err != nil {
		t.Fatal(err)
	}
	a = s.open("a")
	wantValue(t, a, "1")
	list, err := a.Members()
	if err != nil || len(list) != 1 || list[0].Name != "a" || list[0].Address != s.peers("a").Address {
		t.Fatalf("%+v, %v", list, err)
	}
	// The other one is of a cluster that is no more: it must not get anything into this one, and can join it anew.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := Open(ctx, Config{Dir: s.data("b"), Peers: s.peers("b")}); err == nil {
		t.Error("a member of the old cluster serves")
	}
	wantValue(t, a, "1")
	if err := os.RemoveAll(s.data("b")); err != nil {
		t.Fatal(err)
	}
	b = s.join("b", a)
	wantValue(t, b, "1")
}

func TestServersComeAndGo(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	a := s.first()
	if _, err := a.RemoveMember(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "only one") {
		t.Errorf("the last one goes: %v", err)
	}
	b, c := s.join("b", a), (*Backend)(nil)
	c = s.join("c", a)
	if _, err := a.RemoveMember(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "no member") {
		t.Errorf("nobody: %v", err)
	}
	// One goes by itself.
	if _, err := a.RemoveMember(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.RestartDue():
	case <-time.After(20 * time.Second):
		t.Fatal("it carries on")
	}
	if err := a.RestartReason(); !errors.Is(err, ErrRemoved) {
		t.Errorf("it ends because of %v", err)
	}
	putTo(t, b, "without a")
	wantValue(t, c, "without a")
	_ = a.Close() // it has failed
	if _, err := Open(t.Context(), Config{Dir: s.data("a"), Peers: s.peers("a")}); !errors.Is(err, ErrRemoved) {
		t.Errorf("it starts again: %v", err)
	}

	// Another one has lost its data, and comes back in its own place. Until its member is gone, two of two are needed.
	shut(t, c)
	if err := os.RemoveAll(s.data("c")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AddMember(t.Context(), "c", s.peers("c").Address); !errors.Is(err, ErrBusy) {
		t.Errorf("one of two has lost its data, and comes back without a majority: %v", err)
	}
}

func TestAServerThatLostItsDataComesBack(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	a := s.first()
	b := s.join("b", a)
	c := s.join("c", b)
	putTo(t, c, "1")
	shut(t, c)
	if err := os.RemoveAll(s.data("c")); err != nil {
		t.Fatal(err)
	}
	again := s.add("c", a)
	if same, err := b.AddMember(t.Context(), "c", s.peers("c").Address); err != nil || len(same) != len(again) {
		t.Errorf("asked twice: %s, %s, %v", again, same, err)
	}
	if _, err := a.AddMember(t.Context(), "d", "127.0.0.1:1"); !errors.Is(err, ErrBusy) {
		t.Errorf("a second one joins meanwhile: %v", err)
	}
	if err := Join(s.data("c"), again); err != nil {
		t.Fatal(err)
	}
	c = s.open("c")
	wantValue(t, c, "1")
	list, err := c.Members()
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
}

// A server that has got another address says so to the others, when it starts.
func TestAServerMoves(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	a := s.first()
	b := s.join("b", a)
	putTo(t, b, "1")
	shut(t, b)
	delete(s.ports, "b")
	b = s.open("b")
	putTo(t, a, "2")
	wantValue(t, b, "2")
	list, err := a.Members()
	if err != nil || len(list) != 2 || list[1].Address != s.peers("b").Address || !list[1].Answers {
		t.Errorf("%+v, %v, want %s", list, err, s.peers("b").Address)
	}
}

func TestStrangersAreNoMembers(t *testing.T) {
	s, other := newServers(t), newServers(t)
	a := s.first()
	// Somebody with a certificate of another authority, as nodes have one of the cluster's.
	other.ports["b"] = 0
	initial, err := a.AddMember(t.Context(), "b", other.peers("b").Address)
	if err != nil {
		t.Fatal(err)
	}
	if err := Join(other.data("b"), initial); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := Open(ctx, Config{Dir: other.data("b"), Peers: other.peers("b")}); err == nil {
		t.Error("a stranger has joined")
	}
	putTo(t, a, "1") // a learner that is not there keeps nobody up
}
