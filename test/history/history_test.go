package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	namespace = "default"
	keys      = 6
	writers   = 6
	readers   = 2
	watchers  = 4
	runners   = 3 // for the office of leader
	folder    = "/registry/configmaps/" + namespace + "/"
)

// TestHistory kills servers and members KILLS times (a few by default), at moments that follow from SEED, and
// checks what clients saw.
func TestHistory(t *testing.T) {
	kills := setting(t, "KILLS", 5)
	seed := setting(t, "SEED", uint64(time.Now().UnixNano()))
	t.Logf("KILLS=%d SEED=%d", kills, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := startCluster(t)
	rec := &recorder{began: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range writers {
		w := &writer{session{c, rec, i, rand.New(rand.NewPCG(seed, uint64(i+1)))}, 0}
		running.Go(func() { w.run(ctx) })
	}
	for i := range readers {
		s := session{c, rec, i, rand.New(rand.NewPCG(seed, uint64(i+101)))}
		running.Go(func() { s.list(ctx) })
	}
	for i := range watchers {
		w := &watcher{session: session{c, rec, i, rand.New(rand.NewPCG(seed, uint64(i+201)))}}
		running.Go(func() { w.run(ctx) })
	}
	for i := range runners {
		running.Go(func() { c.runFor(ctx, rec, i) })
	}
	for n := range int(kills) {
		p := c.processes[r.IntN(len(c.processes))]
		time.Sleep(time.Duration(200+r.IntN(1500)) * time.Millisecond)
		p.kill()
		time.Sleep(time.Duration(r.IntN(1200)) * time.Millisecond)
		p.run()
		for i := range c.servers {
			c.awaitServer(i)
		}
		if kills >= 20 && n%10 == 9 {
			rec.mu.Lock()
			t.Logf("%d kills: %d writes, %d reads, %d streams, %d reigns", n+1, len(rec.h.writes), len(rec.h.reads), len(rec.h.streams), len(rec.h.reigns))
			rec.mu.Unlock()
		}
	}
	time.Sleep(2 * time.Second) // of peace, so that every watch ends with what came last
	stop()
	running.Wait()
	h := rec.h
	h.truth = c.truth()
	told := 0
	for _, s := range h.streams {
		told += len(s.events)
	}
	outcomes := map[outcome]int{}
	for _, w := range h.writes {
		outcomes[w.outcome]++
	}
	t.Logf("%d versions in etcd; writes: %d acknowledged, %d refused, %d without an answer; %d reads; %d events in %d streams; %d reigns",
		len(h.truth), outcomes[acknowledged], outcomes[refused], outcomes[unknown], len(h.reads), told, len(h.streams), len(h.reigns))
	for _, err := range h.check() {
		t.Error(err)
	}
	if outcomes[acknowledged] < 50 || told < 50 || len(h.reads) < 50 || len(h.reigns) == 0 {
		t.Error("too little was seen")
	}
	if !t.Failed() {
		catches(t, &h)
	}
}

func setting[T int | uint64](t *testing.T, name string, otherwise T) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return T(n)
}

// catches shows that the checker would have seen faults in this very history.
func catches(t *testing.T, h *history) {
	t.Helper()
	longest := 0
	for i, s := range h.streams {
		if len(s.events) > len(h.streams[longest].events) {
			longest = i
		}
	}
	events := slices.DeleteFunc(slices.Clone(h.streams[longest].events), func(e event) bool { return e.key == "" })
	middle := len(events) / 2
	spoiled := func(change func([]event) []event) *history {
		out := *h
		out.streams = slices.Clone(h.streams)
		out.streams[longest].events = change(slices.Clone(events))
		return &out
	}
	ack := slices.IndexFunc(h.writes, func(w write) bool { return w.outcome == acknowledged && w.value != "" })
	lost := *h
	lost.truth = slices.DeleteFunc(slices.Clone(h.truth), func(e event) bool { return e.value == h.writes[ack].value })
	for what, h := range map[string]*history{
		"a lost write":      &lost,
		"a lost event":      spoiled(func(e []event) []event { return slices.Delete(e, middle, middle+1) }),
		"a doubled event":   spoiled(func(e []event) []event { return slices.Insert(e, middle, e[middle]) }),
		"swapped events":    spoiled(func(e []event) []event { e[middle], e[middle-1] = e[middle-1], e[middle]; return e }),
		"an invented one":   spoiled(func(e []event) []event { e[middle].value = "v-0-0-"; return e }),
		"an early bookmark": spoiled(func(e []event) []event { return slices.Insert(e, middle, event{version: e[len(e)-1].version}) }),
	} {
		if len(h.check()) == 0 {
			t.Errorf("%s is not caught", what)
		}
	}
}

type recorder struct {
	began time.Time
	mu    sync.Mutex
	h     history
}

func (r *recorder) now() time.Duration { return time.Since(r.began) }

func (r *recorder) note(f func(*history)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h)
}

// session is one client, which goes to the other server when one fails.
type session struct {
	c    *cluster
	rec  *recorder
	id   int
	rand *rand.Rand
}

func (s session) pause(ctx context.Context, most time.Duration) {
	select {
	case <-time.After(time.Duration(s.rand.Int64N(int64(most)))):
	case <-ctx.Done():
	}
}

func version(o metav1.Object) int64 {
	n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return -1 // never right
	}
	return n
}

// definite reports whether an error says that a request had no effect.
func definite(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
}

type writer struct {
	session
	written int
}

func (w *writer) run(ctx context.Context) {
	apis := []rest.Interface{w.c.client(0).CoreV1().RESTClient(), w.c.client(1).CoreV1().RESTClient()}
	for n := w.id; ctx.Err() == nil; {
		key := fmt.Sprint("k", w.rand.IntN(keys))
		if !w.step(ctx, apis[n%2], key) {
			n++
		}
		w.pause(ctx, 20*time.Millisecond)
	}
}

// step reads a key and changes it. It reports whether the server answered.
func (w *writer) step(ctx context.Context, api rest.Interface, key string) bool {
	invoked := w.rec.now()
	m := &v1.ConfigMap{}
	err := api.Get().Namespace(namespace).Resource("configmaps").Name(key).MaxRetries(0).Do(ctx).Into(m)
	if err != nil && !apierrors.IsNotFound(err) {
		return false
	}
	r := read{invoked: invoked, returned: w.rec.now(), key: key}
	if err == nil {
		r.version = version(m)
	}
	w.rec.note(func(h *history) { h.reads = append(h.reads, r) })
	w.written++
	out := write{client: w.id, key: key, before: r.version, value: fmt.Sprintf("v-%d-%d-", w.id, w.written)}
	var req *rest.Request
	got := &v1.ConfigMap{}
	switch n := w.rand.IntN(10); {
	case r.version == 0:
		req = api.Post().Body(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key, Namespace: namespace}, Data: map[string]string{"v": out.value}})
	case n < 2:
		out.value = ""
		req = api.Delete().Name(key).Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &m.ResourceVersion}})
	case n < 5:
		req = api.Patch(types.MergePatchType).Name(key).Body(fmt.Appendf(nil, `{"metadata":{"resourceVersion":"%s"},"data":{"v":"%s"}}`, m.ResourceVersion, out.value))
	default:
		m.Data = map[string]string{"v": out.value}
		req = api.Put().Name(key).Body(m)
	}
	out.invoked = w.rec.now()
	raw, err := req.Namespace(namespace).Resource("configmaps").MaxRetries(0).Do(ctx).Raw()
	out.returned = w.rec.now()
	switch {
	case err == nil:
		out.outcome = acknowledged
		if out.value != "" {
			if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, got); err != nil {
				w.c.t.Errorf("an answer cannot be read: %v: %q", err, raw)
			}
			out.version = version(got)
		}
	case definite(err):
		out.outcome = refused
	}
	w.rec.note(func(h *history) { h.writes = append(h.writes, out) })
	return out.outcome != unknown
}

// list lists consistently, and at any version.
func (s session) list(ctx context.Context) {
	apis := []rest.Interface{s.c.client(0).CoreV1().RESTClient(), s.c.client(1).CoreV1().RESTClient()}
	for n := s.id; ctx.Err() == nil; n++ {
		r := read{invoked: s.rec.now(), any: s.rand.IntN(3) == 0}
		req := apis[n%2].Get().Namespace(namespace).Resource("configmaps").MaxRetries(0)
		if r.any {
			req = req.Param("resourceVersion", "0")
		}
		list := &v1.ConfigMapList{}
		if err := req.Do(ctx).Into(list); err == nil {
			r.returned = s.rec.now()
			r.version, r.state = snapshot(list)
			s.rec.note(func(h *history) { h.reads = append(h.reads, r) })
		}
		s.pause(ctx, 50*time.Millisecond)
	}
}

// snapshot returns the version of a list, and the values in it.
func snapshot(list *v1.ConfigMapList) (int64, map[string]string) {
	state := map[string]string{}
	for i := range list.Items {
		if m := &list.Items[i]; ours(m.Name) {
			state[m.Name] = m.Data["v"]
		}
	}
	n, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		n = -1 // never right
	}
	return n, state
}

// ours reports whether the clients here write an object: there is also the authority's certificate.
func ours(name string) bool { return regexp.MustCompile(`^k\d+$`).MatchString(name) }

type watcher struct {
	session
	last int64 // the version until which nothing is missing; 0 if that is not known
}

func (w *watcher) run(ctx context.Context) {
	for n := w.id; ctx.Err() == nil; n++ {
		w.watch(ctx, n%2)
		w.pause(ctx, 100*time.Millisecond)
	}
}

// watch goes on where the last one ended, or begins anew with a list.
func (w *watcher) watch(ctx context.Context, server int) {
	api := w.c.client(server).CoreV1().ConfigMaps(namespace)
	ctx, stop := context.WithTimeout(ctx, time.Duration(1+w.rand.IntN(8))*time.Second) // and sometimes to the other server
	defer stop()
	if w.last == 0 {
		r := read{invoked: w.rec.now()}
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		r.returned = w.rec.now()
		r.version, r.state = snapshot(list)
		w.rec.note(func(h *history) { h.reads = append(h.reads, r) })
		w.last = r.version
	}
	ch, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(w.last, 10), AllowWatchBookmarks: true})
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			w.last = 0
		}
		return
	}
	defer ch.Stop()
	s := stream{watcher: w.id, after: w.last}
	defer func() { w.rec.note(func(h *history) { h.streams = append(h.streams, s) }) }()
	for e := range ch.ResultChan() {
		if e.Type == watch.Error {
			if err := apierrors.FromObject(e.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				w.last = 0
			}
			return
		}
		m, ok := e.Object.(*v1.ConfigMap)
		if !ok {
			w.c.t.Errorf("a watch brought %T", e.Object)
			return
		}
		seen := event{version: version(m)}
		switch {
		case e.Type == watch.Bookmark:
		case !ours(m.Name):
			continue
		case e.Type == watch.Deleted:
			seen.key = m.Name
		default:
			seen.key, seen.value = m.Name, m.Data["v"]
		}
		s.events = append(s.events, seen)
		w.last = seen.version
	}
}

// runFor takes part in the election of a leader.
func (c *cluster) runFor(ctx context.Context, rec *recorder, id int) {
	for n := id; ctx.Err() == nil; n++ {
		me := fmt.Sprint("candidate-", id)
		lease := &office{rec: rec, Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: "leader"}, Client: c.client(n % 2).CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: me},
		}}
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lease, LeaseDuration: 3 * time.Second, RenewDeadline: 1500 * time.Millisecond, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: id == 0,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
		})
		if err != nil {
			c.t.Error(err)
			return
		}
		term, resign := context.WithTimeout(ctx, time.Duration(3+id)*time.Second)
		e.Run(term)
		resign()
		if from, to := lease.reign(); from > 0 {
			rec.note(func(h *history) { h.reigns = append(h.reigns, reign{me, from, to}) })
		}
	}
}

// office is a lease as one elector uses it, and knows when its candidate led. The elector's callbacks do not: they
// run beside it, and after it has let go of the lease.
type office struct {
	resourcelock.Interface
	rec            *recorder
	taken, letGoOf time.Duration // 0 is never
}

func (o *office) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return o.took(o.Interface.Create(ctx, r))
}

func (o *office) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" { // from here on it is somebody else's, whatever the answer
		o.letGoOf = o.rec.now()
		return o.Interface.Update(ctx, r)
	}
	return o.took(o.Interface.Update(ctx, r))
}

func (o *office) took(err error) error {
	if err == nil && o.taken == 0 {
		o.taken = o.rec.now()
	}
	return err
}

// reign is to be asked at once after the elector has ended.
func (o *office) reign() (from, to time.Duration) {
	if o.letGoOf > 0 {
		return o.taken, o.letGoOf
	}
	return o.taken, o.rec.now()
}

var valueOf = regexp.MustCompile(`v-\d+-\d+-`)

// truth reads etcd's own order of events.
func (c *cluster) truth() (out []event) {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.etcd, DialTimeout: time.Minute})
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			c.t.Error(err)
		}
	}()
	ctx, stop := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer stop()
	now, err := client.Get(ctx, folder, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		c.t.Fatal(err)
	}
	for r := range client.Watch(ctx, folder, clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify()) {
		if r.Err() != nil {
			c.t.Fatal(r.Err())
		}
		for _, e := range r.Events {
			key := strings.TrimPrefix(string(e.Kv.Key), folder)
			if ours(key) {
				out = append(out, event{e.Kv.ModRevision, key, valueOf.FindString(string(e.Kv.Value))})
			}
		}
		if r.IsProgressNotify() && r.Header.Revision >= now.Header.Revision { // that of events is the newest of all
			return out
		}
		if err := client.RequestProgress(ctx); err != nil {
			c.t.Fatal(err)
		}
	}
	c.t.Fatal(errors.Join(errors.New("etcd does not tell all of its events"), ctx.Err()))
	return nil
}
