package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"wherry.dev/internal/record"
)

// Peers says how an embedded etcd and those of other servers reach each other. Nothing of it is used, and there is no
// listener, before the data has members: WillHaveMembers.
type Peers struct {
	Name    string // of this member
	Address string // host:port, with the address itself
	// CertFile and KeyFile prove to the others who this is, as a server and as a client, and CAFile has whom they and
	// we believe. The authority must sign for nobody else.
	CertFile, KeyFile, CAFile string
	// Waiting is told whom a start waits for; it may be nil.
	Waiting func(string)
}

func (p *Peers) url() string { return "https://" + p.Address }

func (p *Peers) tls() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: p.CertFile, KeyFile: p.KeyFile, TrustedCAFile: p.CAFile, ClientCertAuth: true,
		// A server with several addresses may call from another one than it is called at.
		SkipClientSANVerify: true,
	}
}

// Ticks of an etcd with other members. A member waits for as long as with etcd's own defaults until it wants to lead, and
// half as many heartbeats wake everybody meanwhile.
const (
	memberHeartbeat = 200 * time.Millisecond
	memberElection  = 5 * memberHeartbeat
	// memberCatchUp is how many entries of the log are kept for members that are behind.
	memberCatchUp = 5000
)

var (
	// ErrLone means that this etcd has no peers yet, and another process has to open it after WillHaveMembers.
	ErrLone = errors.New("this server is still alone")
	// ErrRemoved means that this server's etcd is not a member any more, and never will be again.
	ErrRemoved = errors.New("this server was taken out of its cluster; `wherry down --purge` removes what is left of it here, and then it can join again")
	// ErrLost means that the data of this server's etcd are gone, and those of other servers are not.
	ErrLost = errors.New("this server's part of the cluster's data is gone: give --join-server and a token of `wherry token create --server` " +
		"to get it from the other servers")
	// ErrBusy means that the members cannot be changed right now.
	ErrBusy = errors.New("the members of the cluster's data cannot change just now")
)

// members is the record of an etcd that has, or will have, other members.
type members struct {
	// Initial is what a new member has to know to find the others: etcd's initial-cluster.
	Initial string `json:"initial,omitempty"`
	// Began means that this member has been one like the others. Without its data it must not start again: it has forgotten
	// what it promised them.
	Began bool `json:"began,omitempty"`
}

// MembersFile says that the data below dir are, or will be, shared (HasMembers).
func MembersFile(dir string) string { return filepath.Join(dir, "members.json") }

// HasMembers reports whether the data below dir are, or will be, shared with the etcds of other servers.
func HasMembers(dir string) bool {
	_, err := os.Stat(MembersFile(dir))
	return err == nil
}

// WillHaveMembers makes the next start of an etcd ready for others.
func WillHaveMembers(dir string) error {
	if HasMembers(dir) {
		return nil
	}
	return record.Write(MembersFile(dir), 1, members{})
}

// Join makes the first start of an etcd that of a new member of others. initial is what AddMember returned.
func Join(dir, initial string) error {
	if HasData(dir) {
		return fmt.Errorf("%s has data already", MemberDir(dir))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return record.Write(MembersFile(dir), 1, members{Initial: initial})
}

// HasData reports whether an etcd has run below dir.
func HasData(dir string) bool {
	entries, err := os.ReadDir(filepath.Join(MemberDir(dir), "member", "wal"))
	return err == nil && len(entries) > 0
}

// withMembers makes cfg that of an etcd with other members. It returns false if it has none.
func withMembers(cfg *embed.Config, dir string, p *Peers) (bool, error) {
	var m members
	_, err := record.Read(MembersFile(dir), &m)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if p == nil || p.Address == "" {
		return false, fmt.Errorf("%s says that this server's data are shared with other servers, and it has no address for them", MembersFile(dir))
	}
	if m.Began && !HasData(dir) {
		return false, fmt.Errorf("%w (%s)", ErrLost, MemberDir(dir))
	}
	own, err := url.Parse(p.url())
	if err != nil {
		return false, err
	}
	cfg.Name = p.Name
	cfg.AdvertisePeerUrls = []url.URL{*own}
	cfg.PeerTLSInfo = p.tls()
	cfg.InitialCluster = cfg.InitialClusterFromName(p.Name)
	if m.Initial != "" {
		cfg.InitialCluster, cfg.ClusterState = m.Initial, embed.ClusterStateFlagExisting
	}
	cfg.TickMs, cfg.ElectionMs = uint(memberHeartbeat/time.Millisecond), uint(memberElection/time.Millisecond)
	cfg.SnapshotCatchUpEntries = memberCatchUp
	return true, nil
}

// assembly is an embedded etcd among others.
type assembly struct {
	server *etcdserver.EtcdServer
	end    *fatality
	peers  *Peers
	client *http.Client
	serves *peerServer

	closing atomic.Bool

	changing sync.Mutex // held while members are added

	mu   sync.Mutex
	lost time.Time // since when there has been no leader; zero if there is one

	asking  sync.Mutex
	missing string // what noMajority last found out
	asked   time.Time
}

func newAssembly(server *etcdserver.EtcdServer, p *Peers, serves *peerServer, end *fatality) (*assembly, error) {
	cfg, err := p.tls().ClientConfig()
	if err != nil {
		return nil, err
	}
	return &assembly{
		server: server, end: end, peers: p, serves: serves,
		client: &http.Client{Timeout: answerPatience, Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}},
	}, nil
}

const (
	// answerPatience is how long another member may take to answer.
	answerPatience = time.Second
	// electPatience is how long requests wait for a leader: longer than most elections take.
	electPatience = 3 * time.Second
	// tellEvery is how often a start says whom it waits for.
	tellEvery = 5 * time.Second
	// removePatience is how long the removal of a member may take: twice etcd's own HealthInterval.
	removePatience = 10 * time.Second
	// startPause is the pause between two attempts of a start.
	startPause = 20 * time.Millisecond
)

// start waits until this member is one like the others: there is a leader, it has caught up, and it votes. A server whose
// etcd has no majority waits until there is one again.
func (a *assembly) start(ctx context.Context) error {
	// etcd itself waits until the others know this member's name. That request can get lost while connections are made, and
	// is repeated after seven seconds only.
	for _, step := range []struct {
		what string
		do   func(context.Context) (done bool, err error)
	}{
		{"waiting for the other servers", a.hasLeader}, {"catching up with the other servers", a.isCurrent}, {"asking the other servers", a.promote},
	} {
		if err := a.insist(ctx, step.what, step.do); err != nil {
			return err
		}
	}
	if a.server.Cluster().Member(a.server.MemberID()) == nil {
		return ErrRemoved
	}
	if err := a.correctAddress(ctx); err != nil {
		return err
	}
	dir := filepath.Dir(a.server.Cfg.DataDir)
	var m members
	if _, err := record.Read(MembersFile(dir), &m); err != nil || m.Began {
		return err
	}
	return record.Write(MembersFile(dir), 1, members{Began: true})
}

// insist repeats a step until it is done, and says every few seconds what it waits for.
func (a *assembly) insist(ctx context.Context, what string, do func(context.Context) (bool, error)) error {
	for said := time.Now(); ; {
		trying, cancel := context.WithTimeout(ctx, a.server.RequestTimeout())
		done, err := do(trying)
		cancel()
		if done {
			return nil
		}
		if time.Since(said) > tellEvery {
			said = time.Now()
			text := a.noMajority()
			klog.FromContext(ctx).Info("Not one of the servers yet: "+what, "members", text, "err", err)
			if a.peers.Waiting != nil {
				a.peers.Waiting(what + ": " + text)
			}
		}
		select {
		case <-time.After(startPause):
		case <-a.server.StopNotify():
			return a.stopped()
		case <-a.end.failed():
			return a.end.err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *assembly) hasLeader(context.Context) (bool, error) { return a.server.Leader() != 0, nil }

// isCurrent reports whether this member has all that was acknowledged before.
func (a *assembly) isCurrent(ctx context.Context) (bool, error) {
	err := a.server.LinearizableReadNotify(ctx)
	return err == nil, err
}

// promote makes a member that was added vote, as soon as it has caught up.
func (a *assembly) promote(ctx context.Context) (bool, error) {
	if a.server.Cluster().Member(a.server.MemberID()) == nil || !a.server.IsLearner() {
		return true, nil
	}
	_, err := a.server.PromoteMember(ctx, uint64(a.server.MemberID()))
	return false, err // it takes a moment until this member knows it, too
}

// correctAddress tells the others where this member is reached now.
func (a *assembly) correctAddress(ctx context.Context) error {
	self := a.server.Cluster().Member(a.server.MemberID())
	if self == nil || slices.Equal(self.PeerURLs, []string{a.peers.url()}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.server.RequestTimeout())
	defer cancel()
	now := *self
	now.PeerURLs = []string{a.peers.url()}
	if _, err := a.server.UpdateMember(ctx, now); err != nil {
		return fmt.Errorf("tell the other members of etcd that this one is at %s: %w", a.peers.Address, err)
	}
	return nil
}

// stopped returns why etcd has ended by itself.
func (a *assembly) stopped() error {
	if a.isRemoved() {
		return ErrRemoved
	}
	return cmp.Or(a.end.err(), errors.New("etcd stopped; its last messages in the log may say why"))
}

func (a *assembly) isRemoved() bool {
	return a.end.removed.Load() || a.server.IsIDRemoved(uint64(a.server.MemberID()))
}

// watch makes it a failure when etcd ends by itself.
func (a *assembly) watch() {
	select {
	case <-a.server.StopNotify():
		if !a.closing.Load() {
			a.end.fail(a.stopped())
		}
	case <-a.end.failed():
	}
}

// awaitLeader waits for a leader while one is being elected. Without a majority of the members there is none, and it says so.
func (a *assembly) awaitLeader(ctx context.Context) error {
	const pause = 20 * time.Millisecond
	for {
		if a.server.Leader() != 0 {
			a.mu.Lock()
			a.lost = time.Time{}
			a.mu.Unlock()
			return nil
		}
		a.mu.Lock()
		if a.lost.IsZero() {
			a.lost = time.Now()
		}
		since := time.Since(a.lost)
		a.mu.Unlock()
		if since > electPatience {
			err := apierrors.NewServiceUnavailable("the cluster's data is unavailable: " + a.noMajority())
			err.ErrStatus.Details = retryIn(1)
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noMajority says who is missing. It asks them once a second, however many want to know.
func (a *assembly) noMajority() string {
	a.asking.Lock()
	defer a.asking.Unlock()
	if time.Since(a.asked) > time.Second {
		a.missing, a.asked = a.whoIsMissing(), time.Now()
	}
	return a.missing
}

func (a *assembly) whoIsMissing() string {
	var missing []string
	voters := 0
	all := a.look()
	for _, m := range all {
		if !m.Learner {
			voters++
		}
		if !m.Answers {
			missing = append(missing, fmt.Sprintf("%s (%s)", m.Name, m.Address))
		}
	}
	if len(missing) == 0 {
		return fmt.Sprintf("all of its %d servers answer, and none leads yet", len(all))
	}
	return fmt.Sprintf("%d of its %d servers are needed, and these do not answer: %s", voters/2+1, voters, strings.Join(missing, ", "))
}

// Member is an etcd of one of the cluster's servers.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`    // that of the server's node; empty before its first start
	Address string `json:"address"` // where the others reach it
	Learner bool   `json:"learner,omitempty"`
	Leader  bool   `json:"leader,omitempty"`
	Self    bool   `json:"self,omitempty"`
	Answers bool   `json:"answers"`
}

// look returns the members as this one knows them, and whether they answer.
func (a *assembly) look() []Member {
	leader, self := a.server.Leader(), a.server.MemberID()
	list := a.server.Cluster().Members()
	out := make([]Member, len(list))
	var wg sync.WaitGroup
	for i, m := range list {
		out[i] = Member{
			ID: m.ID.String(), Name: m.Name, Address: address(m), Learner: m.IsLearner, Leader: m.ID == leader, Self: m.ID == self, Answers: m.ID == self,
		}
		if m.ID != self {
			wg.Go(func() { out[i].Answers = a.answers(m) })
		}
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b Member) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID)) })
	return out
}

// address returns where a member is reached: host:port.
func address(m *membership.Member) string {
	if len(m.PeerURLs) == 0 {
		return ""
	}
	return strings.TrimPrefix(m.PeerURLs[0], "https://")
}

// answers reports whether a member's etcd is there.
func (a *assembly) answers(m *membership.Member) bool {
	return slices.ContainsFunc(m.PeerURLs, func(u string) bool {
		resp, err := a.client.Get(u + "/version")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
}

// Members returns the etcds of the cluster's servers; only this one if it is alone.
func (b *Backend) Members() ([]Member, error) {
	switch e := b.embedded; {
	case e == nil:
		return nil, errExternal
	case e.assembly != nil:
		return e.assembly.look(), nil
	default:
		return []Member{{ID: e.etcd.Server.MemberID().String(), Name: memberName, Leader: true, Self: true, Answers: true}}, nil
	}
}

var errExternal = errors.New("the cluster's data are in an external etcd (--etcd-servers): use etcdctl member")

func (b *Backend) assembly() (*assembly, error) {
	switch {
	case b.embedded == nil:
		return nil, errExternal
	case b.embedded.assembly == nil:
		return nil, ErrLone
	}
	return b.embedded.assembly, nil
}

// AddMember lets the etcd of another server join, which does not vote before it has caught up. It returns what that one
// needs to know to start (Join). Whoever asks again gets the same. A member of the same name or address that does not answer
// is what that server was before its data were lost: it is removed. One that answers is an error.
func (b *Backend) AddMember(ctx context.Context, name, at string) (initial string, err error) {
	a, err := b.assembly()
	if err != nil {
		return "", err
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	urls, err := types.NewURLs([]string{"https://" + at})
	if err != nil {
		return "", fmt.Errorf("address of the new server %q: %w", at, err)
	}
	if err := a.server.LinearizableReadNotify(ctx); err != nil { // this one may not know yet what others have changed
		return "", busy(err)
	}
	added := false
	for _, m := range a.server.Cluster().Members() {
		same := slices.Equal(m.PeerURLs, urls.StringSlice())
		switch {
		case !same && m.Name == "": // its name is needed to find it
			return "", fmt.Errorf("%w: the server at %s is joining; if it will not come, `wherry etcd member remove %s` makes room", ErrBusy, address(m), m.ID)
		case !same && m.Name != name:
		case same && m.Name == "": // asked before
			added = true
		case a.answers(m):
			return "", fmt.Errorf("there is a server %s at %s already, which answers: give the new one another name and address, or take the old one out first", m.Name, address(m))
		default:
			klog.FromContext(ctx).Info("Removing a member of etcd in whose place a new server comes", "name", m.Name, "urls", m.PeerURLs)
			if err := a.remove(ctx, m.ID); err != nil {
				return "", busy(fmt.Errorf("remove the member %s, in whose place the new server comes: %w", m.Name, err))
			}
		}
	}
	for now := time.Now(); !added; now = now.Add(time.Second) {
		_, err := a.server.AddMember(ctx, *membership.NewMemberAsLearner("", urls, "", &now))
		if errors.Is(err, membership.ErrIDRemoved) {
			continue // IDs follow from the address and the second: one that was added and removed within the same
		}
		if err != nil {
			return "", busy(err)
		}
		added = true
	}
	var all []string
	for _, m := range a.server.Cluster().Members() {
		who := m.Name
		if slices.Equal(m.PeerURLs, urls.StringSlice()) {
			who = name
		}
		for _, u := range m.PeerURLs {
			all = append(all, who+"="+u)
		}
	}
	return strings.Join(all, ","), nil
}

// busy marks errors that pass.
func busy(err error) error {
	switch {
	case errors.Is(err, membership.ErrIDExists), errors.Is(err, membership.ErrPeerURLexists): // an attempt before this one
		return fmt.Errorf("%w: the server is being added", ErrBusy)
	case errors.Is(err, membership.ErrTooManyLearners):
		return fmt.Errorf("%w: another server is joining", ErrBusy)
	case errors.Is(err, etcderrors.ErrUnhealthy), errors.Is(err, etcderrors.ErrNotEnoughStartedMembers):
		return fmt.Errorf("%w: too many of the servers do not answer (%w)", ErrBusy, err)
	case errors.Is(err, etcderrors.ErrTimeout), errors.Is(err, etcderrors.ErrTimeoutDueToLeaderFail), errors.Is(err, etcderrors.ErrNoLeader),
		errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// RemoveMember takes a server's etcd out, by name or ID. If it is this one, another one leads from then on, and this one
// ends.
func (b *Backend) RemoveMember(ctx context.Context, who string) (Member, error) {
	a, err := b.assembly()
	if errors.Is(err, ErrLone) {
		return Member{}, fmt.Errorf("%w: there is nobody else", err)
	}
	if err != nil {
		return Member{}, err
	}
	all := a.look()
	i := slices.IndexFunc(all, func(m Member) bool { return m.ID == who || m.Name == who && who != "" })
	if i < 0 {
		return Member{}, fmt.Errorf("there is no member %q; `wherry etcd member list` has them", who)
	}
	gone := all[i]
	if len(all) == 1 {
		return gone, errors.New("it is the only one: its data would be lost")
	}
	if gone.Self && gone.Leader {
		if err := a.handOver(ctx, all); err != nil {
			return gone, err
		}
	}
	id, err := types.IDFromString(gone.ID)
	if err != nil {
		return gone, err
	}
	for end := time.Now().Add(removePatience); ; {
		trying, cancel := context.WithTimeout(ctx, a.server.RequestTimeout())
		err := a.remove(trying, id)
		cancel()
		if err == nil || gone.Self && a.isRemoved() {
			return gone, nil
		}
		// etcd wants to have seen the others for some seconds before it lets one go.
		if err = busy(err); !errors.Is(err, ErrBusy) || time.Now().After(end) || ctx.Err() != nil {
			return gone, fmt.Errorf("remove member %s: %w", who, err)
		}
		select {
		case <-time.After(startPause):
		case <-ctx.Done(): // the next attempt says so
		}
	}
}

// remove removes a member, or does nothing if that has been done.
func (a *assembly) remove(ctx context.Context, id types.ID) error {
	_, err := a.server.RemoveMember(ctx, uint64(id))
	if errors.Is(err, membership.ErrIDRemoved) || errors.Is(err, membership.ErrIDNotFound) {
		return nil
	}
	return err
}

// handOver makes another member the leader.
func (a *assembly) handOver(ctx context.Context, all []Member) error {
	for _, m := range all {
		if m.Self || m.Learner || !m.Answers {
			continue
		}
		to, err := types.IDFromString(m.ID)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, electPatience)
		defer cancel()
		if err := a.server.MoveLeader(ctx, uint64(a.server.MemberID()), uint64(to)); err != nil {
			return fmt.Errorf("let %s lead: %w", m.Name, err)
		}
		return nil
	}
	return fmt.Errorf("%w: no other server answers that could lead", ErrBusy)
}
