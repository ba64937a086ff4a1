package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/podops"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/mount"
	"wherry.dev/test/fakecri"
)

// life is the life of one pod, and the world around it.
type life struct {
	t    *testing.T
	r    *rand.Rand // of the goroutine that plays
	dice *dice
	hist *history
	rt   *fakecri.Runtime
	api  *apiServer
	dir  string
	uid  types.UID   // of the pod that is wanted, or was last wanted
	uids []types.UID // of all pods so far

	cgroups   *cgroups
	claims    *claims
	net       *internet
	objects   *objectStore
	pods      sync.Map // by UID, as they came
	refusals  sync.Map // by UID, why the node refuses them
	taints    []v1.Taint
	policy    kubeletconfig.ImagePullCredentialsVerificationPolicy // empty: nothing is recorded
	open      bool                                                 // the node's private image is for all pods
	crashWait time.Duration                                        // the cap of the crash back-off, 0: the default
	calmSince atomic.Int64                                         // when the faults ended, 0: not yet
	// static pods come from a manifest, which is nil once it is removed.
	static   bool
	manifest atomic.Pointer[v1.Pod]
	real     bool        // the status is written by the real manager, not by a statusWriter
	quiet    atomic.Bool // the faults have ended
	current  atomic.Pointer[node]
	started  int
	broken   breaks
	killed   chan struct{}
}

// Outcome is how a life turned out.
type Outcome struct {
	Seed uint64
	hist *history
	// Err is what was violated, nil if all was well.
	Err error
}

// History returns everything that happened, one line per event.
func (o Outcome) History() []string { return o.hist.lines() }

// Play plays the life of a seed, with files in dir, which must be empty. Goroutines carry the seed
// as a label, which a panic shows if GODEBUG has tracebacklabels=1.
func Play(t *testing.T, seed uint64, dir string) Outcome { return play(t, seed, dir, breaks{}) }

// breaks is what a test changes in a life, to see that it is detected.
type breaks struct {
	draw   func()                                            // called wherever something is drawn
	before func(*podplan.Op)                                 // changes an op before it is done
	after  func(w watched, op podplan.Op, in *podplan.Input) // does more than the op
	status func(*v1.PodStatus)                               // changes what is put
	result func(*podplan.Result)                             // changes the result of an op

	deps    func(*podops.Deps)                 // changes what ops work with
	admit   bool                               // everything is admitted
	sandbox func(*runtimeapi.PodSandboxConfig) // changes what is made
	handler func(string) string
	create  func(*runtimeapi.ContainerConfig)
	auth    func(*runtimeapi.AuthConfig) // changes the credentials that a pull shows
}

func play(t *testing.T, seed uint64, dir string, b breaks) Outcome {
	out := Outcome{Seed: seed}
	pprof.Do(t.Context(), pprof.Labels("seed", strconv.FormatUint(seed, 10)), func(context.Context) {
		synctest.Test(t, func(t *testing.T) {
			l := newLife(t, seed, dir)
			l.broken, l.dice.jostle = b, b.draw
			l.play()
			out.Err, out.hist = l.hist.failure(), l.hist
		})
	})
	if err := clean(dir, out.Err != nil); err != nil && out.Err == nil {
		out.Err = err
	}
	return out
}

// clean removes the files of a life; one that was broken off may have left mounts.
func clean(dir string, broken bool) error {
	if broken {
		if err := mount.UnmountUnder(dir); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func newLife(t *testing.T, seed uint64, dir string) *life {
	l := &life{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), dice: newDice(seed), hist: newHistory(), dir: dir,
		rt: fakecri.New(imagePresent), killed: make(chan struct{}, 1),
	}
	l.cgroups = &cgroups{l: l, m: map[string]bool{}}
	l.claims = newClaims(l.dice.chance(0.3, "devices"))
	l.net, l.objects = newInternet(l), newObjectStore(l)
	l.rt.Publish(imageOther)
	l.rt.Handlers = []string{handlerFast}
	l.static = l.chance(0.12)
	l.real = l.chance(0.1)
	if !l.static && l.chance(0.02) {
		l.taints = []v1.Taint{{Key: "example.com/no", Effect: v1.TaintEffectNoExecute}}
	}
	if l.chance(0.1) {
		l.crashWait = 30 * time.Second
	}
	l.firstObjects()
	pod := l.newPod()
	l.verification(pod)
	l.uid, l.uids = pod.UID, []types.UID{pod.UID}
	l.rt.KeepCreated = l.chance(0.5)
	l.rt.NoEvents = l.chance(0.2)
	l.rt.Behave = func(cfg *runtimeapi.ContainerConfig) fakecri.Behaviour {
		return behave(l.dice, l.faulty(), cfg.Metadata.Name, cfg.Metadata.Attempt, cfg.Command[0])
	}
	l.rt.OnChange = l.changed
	l.api = &apiServer{hist: l.hist, changed: l.watch}
	if l.static {
		l.manifest.Store(pod)
	} else {
		pod.Status = fresh(pod)
		l.api.pod = pod
	}
	l.hist.add(Event{What: PodSet, Pod: pod})
	return l
}

// newPod makes a pod, with everything that the life has for it.
func (l *life) newPod() *v1.Pod {
	g := generator{l.r}
	pod := RandomPod(l.r, "p")
	pod.UID = types.UID(fmt.Sprintf("uid-p-%d", len(l.uids)))
	if l.static {
		manifest(pod)
	} else {
		g.addObjects(pod)
		giveHosts(pod)
	}
	g.local(pod)
	reason := ""
	switch {
	case g.chance(0.04):
		reason = g.unwelcome(pod)
	case len(l.taints) > 0 && g.chance(0.5):
		pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	case len(l.taints) > 0:
		reason = "TaintToleration"
	}
	l.know(pod, reason)
	return pod
}

func (l *life) chance(p float64) bool { return l.r.Float64() < p }

// upTo returns a duration, to the nanosecond.
func (l *life) upTo(d time.Duration) time.Duration { return time.Duration(l.r.Int64N(int64(d))) + 1 }

func (l *life) faulty() bool { return !l.quiet.Load() }

// want returns the pod as its source has it; nil if there is none.
func (l *life) want() *v1.Pod {
	if l.static {
		return l.manifest.Load()
	}
	pod, _ := l.api.get()
	return pod
}

// changed is told what happens in the runtime. The kubelet gets an event: later, twice, or not at
// all.
func (l *life) changed(c fakecri.Change) {
	l.hist.add(FromRuntime(c))
	if c.What == "started" && c.Name == "i0" {
		l.writeEnvFile(c.UID)
	}
	if c.What == "exited" {
		l.writeMessage(&c)
	}
	if l.faulty() && l.dice.chance(0.1, "event lost") {
		return
	}
	late := 20 * time.Millisecond
	if l.rt.NoEvents {
		late = time.Second // the kubelet looks for itself
	}
	for i := range 2 {
		time.AfterFunc(l.dice.upTo(late, "event"), func() {
			if n := l.current.Load(); n != nil {
				n.table.Wake(types.UID(c.UID))
			}
		})
		if i == 0 && !l.dice.chance(0.05, "event twice") {
			break
		}
	}
}

// watch tells the kubelet, a little later, that its sources have changed.
func (l *life) watch() {
	most := 50 * time.Millisecond
	if l.faulty() && l.dice.chance(0.05, "watch is late") {
		most = 30 * time.Second
	}
	time.AfterFunc(l.dice.upTo(most, "watch"), func() {
		if n := l.current.Load(); n != nil {
			n.deliver()
		}
	})
}

// play plays the life from start to finish.
//
//  1. For a while everything goes wrong that can, and the user changes his mind.
//  2. The faults end. If the pod is still wanted, it comes to rest where it should be,
//     and stays there when the kubelet is restarted.
//  3. It is deleted. When it is gone, nothing is left.
func (l *life) play() {
	defer func() {
		if n := l.current.Load(); n != nil {
			n.stop()
		}
		l.net.close()
	}()
	l.up()
	if l.chance(0.1) && l.pass(l.upTo(pick(l.r, 50*time.Millisecond, 500*time.Millisecond, 3*time.Second))) {
		l.remove() // while it is being made
	}
	end := l.upTo(10 * time.Minute)
	for time.Since(dawn) < end && l.pass(l.upTo(end/6)) {
		if l.chance(0.1) {
			l.checkDump()
		}
		l.mishap()
	}
	l.calm()
	if !l.gone() && !l.asked() && l.pass(12*time.Minute) {
		l.atRest()
	}
	if !l.gone() && !l.asked() {
		l.remove()
	}
	for range 40 {
		if l.gone() && l.empty() == nil || !l.pass(15*time.Second) {
			break
		}
	}
	if err := l.empty(); err != nil {
		l.hist.fail(err)
	} else if !l.gone() {
		l.hist.fail(errors.New("the pod was asked to go and is not gone"))
	} else if l.objects.watched() > 0 && l.pass(3*time.Minute) && l.objects.watched() > 0 {
		l.hist.fail(fmt.Errorf("%d objects are watched for nobody", l.objects.watched()))
	}
}

// up starts a kubelet.
func (l *life) up() {
	l.started++
	n, err := startNode(l, l.started)
	if err != nil {
		l.hist.fail(err)
		return
	}
	l.current.Store(n)
}

// down waits until a kubelet that was killed, or that is to be stopped, has ended.
func (l *life) down() {
	began := time.Now()
	l.current.Swap(nil).stop()
	time.Sleep(time.Second - time.Since(began)) // however long it took to end
	select {                                    // it may have been killed a moment before it was stopped
	case <-l.killed:
	default:
	}
}

// pass lets time pass, and restarts kubelets that were killed. It reports whether all is still
// well.
func (l *life) pass(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return l.hist.failure() == nil
		case <-l.hist.broken:
			return false
		case <-l.killed:
			l.down()
			if l.chance(0.5) {
				time.Sleep(l.upTo(10 * time.Second))
			}
			l.up()
		}
	}
}

// calm ends the faults.
func (l *life) calm() {
	l.quiet.Store(true)
	l.hist.add(Event{What: FaultsEnd})
	l.lastObjects()
	// A kill at the very last moment.
	select {
	case <-l.killed:
		l.down()
		l.up()
	default:
	}
	if l.current.Load() == nil {
		l.up()
	}
}

func (l *life) asked() bool {
	pod := l.want()
	return pod == nil || pod.DeletionTimestamp != nil
}

// gone reports whether the sources and the kubelet no longer know the pod.
func (l *life) gone() bool {
	if l.want() != nil {
		return false
	}
	n := l.current.Load()
	if n == nil {
		return false
	}
	return !slices.ContainsFunc(l.uids, func(uid types.UID) bool {
		_, known := n.table.Get(uid)
		return known
	})
}

// empty returns an error that says what is left of the pod.
func (l *life) empty() error {
	if n := l.rt.Sandboxes() + l.rt.Containers(); n > 0 {
		return fmt.Errorf("%d sandboxes and containers are left", n)
	}
	if n := l.cgroups.left(); n > 0 {
		return fmt.Errorf("%d cgroups are left", n)
	}
	if n := l.claims.left(); n > 0 {
		return fmt.Errorf("devices of %d pods are prepared still", n)
	}
	if pod, _ := l.api.get(); l.static && pod != nil {
		return fmt.Errorf("%s is left", pod.UID)
	}
	for _, dir := range []string{"records", "kubelet/pods", "logs", "links"} {
		entries, err := os.ReadDir(l.dir + "/" + dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s holds %s still", dir, entries[0].Name())
		}
	}
	return nil
}
