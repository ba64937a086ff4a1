package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/record"
)

// Manager prepares the claims of pods, and takes that back. Create one with New.
type Manager struct {
	Drivers
	// Client asks for claims; nil if there is no API server, and then no pod has any.
	Client clientset.Interface
	// Retry, if not nil, is called with pods that may get on now: the driver for which they waited is there.
	Retry func(uid types.UID)
	// Look, if not nil, is called with pods the health of whose devices has changed.
	Look func(uid types.UID)

	dir  string
	busy keys

	mu sync.Mutex
	// waiting has the pods that could not get on for want of a driver.
	waiting map[types.UID]string
	// sure has the claims that were prepared since the kubelet was started. Others are prepared again before a sandbox is
	// made: the machine may have been started anew, and drivers have to take it.
	sure map[types.UID]bool
	// away has the drivers whose slices are to go, and since when the driver has not been there. poke tells of a change.
	away map[string]time.Time
	poke chan struct{}
}

// claim is what is on the disk of a claim of which something may be prepared.
type claim struct {
	Namespace, Name string
	UID             types.UID
	// Pods are those on this node that use it, or are about to.
	Pods []types.UID
	// Drivers have prepared it, or may have begun to.
	Drivers map[string]*prepared
	// Devices are those that it had then: DRIVER/POOL/DEVICE/SHARE, sorted.
	Devices []string
}

// prepared is what a driver has prepared.
type prepared struct {
	// Done: the driver has said that it is prepared. It may be, in any case.
	Done    bool
	Devices []Device `json:",omitempty"`
}

// Device is what a driver has prepared for requests of a claim; for all of them if it names none.
type Device struct {
	Pool, Name string
	Requests   []string `json:",omitempty"`
	CDI        []string `json:",omitempty"` // qualified names
	Share      string   `json:",omitempty"`
}

const fileVersion = 1

// New returns a Manager that keeps its files in a folder.
func New(dir string) (*Manager, error) {
	m := &Manager{
		dir: dir, waiting: map[types.UID]string{}, sure: map[types.UID]bool{}, away: map[string]time.Time{}, poke: make(chan struct{}, 1),
	}
	m.Changed, m.HealthChanged = m.changed, m.healthChanged
	census.of.Store(m)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	return m, record.Sweep(dir)
}

func (m *Manager) path(uid types.UID) string { return filepath.Join(m.dir, string(uid)+".json") }

// read returns what is on the disk of a claim, nil if there is nothing.
func (m *Manager) read(uid types.UID) (*claim, error) {
	c := &claim{}
	_, err := record.Read(m.path(uid), c)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("prepared resource claim: %w", err)
	}
	return c, nil
}

func (m *Manager) write(c *claim) error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	return record.Write(m.path(c.UID), fileVersion, c)
}

// all returns the UIDs of all claims of which something may be prepared.
func (m *Manager) all() ([]types.UID, error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []types.UID
	for _, e := range entries {
		if uid, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			out = append(out, types.UID(uid))
		}
	}
	return out, nil
}

// of returns the claims that a pod uses on this node.
func (m *Manager) of(pod types.UID) ([]*claim, error) {
	uids, err := m.all()
	if err != nil {
		return nil, err
	}
	var out []*claim
	var errs []error
	for _, uid := range uids {
		switch c, err := m.read(uid); {
		case err != nil:
			errs = append(errs, err)
		case c != nil && slices.Contains(c.Pods, pod):
			out = append(out, c)
		}
	}
	return out, errors.Join(errs...)
}

// Left reports whether something may be prepared for the pod. A file that cannot be read may be that of any pod that has
// claims: Unprepare says what to do.
func (m *Manager) Left(pod *v1.Pod) bool {
	all, err := m.of(pod.UID)
	return len(all) > 0 || err != nil && hasClaims(pod)
}

func hasClaims(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// named returns the names of the pod's claims with what has to be checked of them, or an error if one is not there yet.
func named(pod *v1.Pod) (names map[string]bool, err error) {
	names = map[string]bool{}
	for i := range pod.Spec.ResourceClaims {
		name, check, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != nil { // else none is needed
			names[*name] = names[*name] || check
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		names[s.ResourceClaimName] = true
	}
	return names, nil
}

// Prepare prepares all claims of the pod. It may be called again at any time; what is prepared is not prepared again.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) (err error) {
	names, err := named(pod)
	if err != nil || len(names) == 0 {
		return err
	}
	defer func(began time.Time) { observe("PrepareResources", err, time.Since(began)) }(time.Now())
	claims, err := m.claims(ctx, pod, names)
	if err != nil {
		return err
	}
	// A pod whose drivers are not there begins nothing, so that it can be deleted: they may never come.
	m.stopWaiting(pod.UID)
	for _, c := range claims {
		for _, driver := range slices.Sorted(maps.Keys(c.Drivers)) {
			if _, err := m.driver(pod.UID, driver); err != nil {
				return err
			}
		}
	}
	unlock, err := m.busy.lock(ctx, claims)
	if err != nil {
		return err
	}
	defer unlock()
	for i, c := range claims {
		is, err := m.read(c.UID)
		if err != nil {
			return err
		}
		if is != nil {
			if !slices.Equal(is.Devices, c.Devices) {
				return fmt.Errorf("ResourceClaim %s is still prepared with other devices, for a pod that has not ended on this node", c.Name)
			}
			for driver := range c.Drivers {
				if is.Drivers[driver] == nil { // it has been taken back
					is.Drivers[driver] = &prepared{}
				}
			}
			claims[i] = is
		}
		if c = claims[i]; is == nil || !slices.Contains(c.Pods, pod.UID) {
			c.Pods = append(c.Pods, pod.UID)
			if err := m.write(c); err != nil { // before anything can be prepared
				return err
			}
		}
	}
	failpoint.At("dra-noted")
	return m.prepareAll(ctx, pod.UID, claims)
}

// claims returns the pod's claims as they are to be prepared.
func (m *Manager) claims(ctx context.Context, pod *v1.Pod, names map[string]bool) ([]*claim, error) {
	if m.Client == nil {
		return nil, errors.New("resource claims cannot be looked up without an API server")
	}
	var out []*claim
	for _, name := range slices.Sorted(maps.Keys(names)) {
		its, err := m.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
		}
		if names[name] {
			if err := resourceclaim.IsForPod(pod, its, true); err != nil {
				return nil, err
			}
		}
		if !resourceclaim.IsReservedForPod(pod, its, true) {
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, name, its.UID)
		}
		if its.Status.Allocation == nil {
			return nil, fmt.Errorf("ResourceClaim %s: not allocated", name)
		}
		c := &claim{Namespace: its.Namespace, Name: name, UID: its.UID, Drivers: map[string]*prepared{}}
		for _, r := range its.Status.Allocation.Devices.Results {
			c.Drivers[r.Driver] = &prepared{}
			c.Devices = append(c.Devices, strings.Join([]string{r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, ""))}, "/"))
		}
		slices.Sort(c.Devices)
		out = append(out, c)
	}
	return out, nil
}

func asked(c *claim) *drav1.Claim {
	return &drav1.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

// prepareAll asks each driver once for all claims of which it has devices.
func (m *Manager) prepareAll(ctx context.Context, pod types.UID, claims []*claim) error {
	ask := byDriver(claims, func(c *claim, p *prepared) bool { return !p.Done || !m.isSure(c.UID) })
	for _, driver := range slices.Sorted(maps.Keys(ask)) {
		its := ask[driver]
		in, err := m.driver(pod, driver)
		if err != nil {
			return err
		}
		answers, err := in.prepare(ctx, messages(its))
		if err != nil {
			m.await(pod, driver)
			return err
		}
		failpoint.At("dra-prepared")
		if err := onlyAsked("NodePrepareResources", answers, its); err != nil {
			return err
		}
		var errs []error
		for _, c := range its {
			switch answer, ok := answers[string(c.UID)]; {
			case !ok:
				errs = append(errs, fmt.Errorf("NodePrepareResources skipped ResourceClaim %s", c.Name))
			case answer.GetError() != "":
				errs = append(errs, fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", c.Name, answer.GetError()))
			default:
				c.Drivers[driver] = &prepared{Done: true, Devices: devicesOf(answer)}
				errs = append(errs, m.write(c))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	failpoint.At("dra-written")
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range claims {
		m.sure[c.UID] = true
	}
	return nil
}

func (m *Manager) isSure(claim types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sure[claim]
}

func devicesOf(answer *drav1.NodePrepareResourceResponse) []Device {
	var out []Device
	for _, d := range answer.GetDevices() {
		out = append(out, Device{Pool: d.GetPoolName(), Name: d.GetDeviceName(), Requests: d.GetRequestNames(), CDI: d.GetCdiDeviceIds(), Share: d.GetShareId()})
	}
	return out
}

// byDriver returns the claims that each driver is to be asked about.
func byDriver(claims []*claim, ask func(*claim, *prepared) bool) map[string][]*claim {
	out := map[string][]*claim{}
	for _, c := range claims {
		for driver, p := range c.Drivers {
			if ask(c, p) {
				out[driver] = append(out[driver], c)
			}
		}
	}
	return out
}

func messages(claims []*claim) []*drav1.Claim {
	var out []*drav1.Claim
	for _, c := range claims {
		out = append(out, asked(c))
	}
	return out
}

// onlyAsked refuses an answer about a claim that nobody asked about.
func onlyAsked[T any](method string, answers map[string]T, asked []*claim) error {
	for uid := range answers {
		if !slices.ContainsFunc(asked, func(c *claim) bool { return string(c.UID) == uid }) {
			return fmt.Errorf("%s returned result for unknown claim UID %s", method, uid)
		}
	}
	return nil
}

// Unprepare takes back what was prepared for the pod, of which nothing may run any more. Claims that other pods on the node
// use stay prepared.
func (m *Manager) Unprepare(ctx context.Context, pod *v1.Pod) (err error) {
	claims, unread := m.of(pod.UID)
	if unread != nil && hasClaims(pod) {
		unread = fmt.Errorf("it cannot be told whether a driver still holds devices of the pod: %w; "+
			"remove the file when the drivers hold none", unread)
	} else {
		unread = nil
	}
	if len(claims) == 0 {
		return unread
	}
	defer func(began time.Time) { observe("UnprepareResources", err, time.Since(began)) }(time.Now())
	m.stopWaiting(pod.UID)
	unlock, err := m.busy.lock(ctx, claims)
	if err != nil {
		return err
	}
	defer unlock()
	var last []*claim
	for _, c := range claims {
		if c, err = m.read(c.UID); err != nil { // as it is now
			return err
		}
		switch {
		case c == nil:
		case slices.Equal(c.Pods, []types.UID{pod.UID}):
			last = append(last, c)
		default:
			c.Pods = slices.DeleteFunc(c.Pods, func(uid types.UID) bool { return uid == pod.UID })
			if err := m.write(c); err != nil {
				return err
			}
		}
	}
	return errors.Join(m.unprepareAll(ctx, pod.UID, last), unread)
}

// unprepareAll asks each driver once. What one has taken back is noted, whatever the others say.
func (m *Manager) unprepareAll(ctx context.Context, pod types.UID, claims []*claim) error {
	var errs []error
	ask := byDriver(claims, func(*claim, *prepared) bool { return true })
	for _, driver := range slices.Sorted(maps.Keys(ask)) {
		its := ask[driver]
		in, err := m.driver(pod, driver)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		answers, err := in.unprepare(ctx, messages(its))
		if err == nil {
			err = onlyAsked("NodeUnprepareResources", answers, its)
		}
		if err != nil {
			m.await(pod, driver)
			errs = append(errs, err)
			continue
		}
		for _, c := range its {
			switch answer, ok := answers[string(c.UID)]; {
			case !ok:
				errs = append(errs, fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", c.Name))
			case answer.GetError() != "":
				errs = append(errs, fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", c.Name, answer.GetError()))
			default:
				delete(c.Drivers, driver)
			}
		}
	}
	failpoint.At("dra-unprepared")
	for _, c := range claims {
		m.mu.Lock()
		delete(m.sure, c.UID)
		m.mu.Unlock()
		if len(c.Drivers) == 0 {
			errs = append(errs, record.Remove(m.path(c.UID)))
		} else {
			errs = append(errs, m.write(c))
		}
	}
	return errors.Join(errs...)
}

// Given is what a container has of a claim.
type Given struct {
	Namespace, Claim string
	Devices          []GivenDevice
}

// GivenDevice is a device of a driver.
type GivenDevice struct {
	Driver string
	Device
}

// Container returns the CDI devices that a container gets by the pod's claims.
func (m *Manager) Container(pod *v1.Pod, c *v1.Container) ([]string, error) {
	given, err := m.Given(pod, c)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, g := range given {
		for _, d := range g.Devices {
			for _, id := range d.CDI {
				if !slices.Contains(out, id) {
					out = append(out, id)
				}
			}
		}
	}
	return out, nil
}

// Given returns what a container has by the pod's claims, or an error if one of them is not prepared.
func (m *Manager) Given(pod *v1.Pod, c *v1.Container) ([]Given, error) {
	wants, err := wantsOf(pod, c)
	if err != nil || len(wants) == 0 {
		return nil, err
	}
	all, unread := m.of(pod.UID)
	var out []Given
	for _, w := range wants {
		i := slices.IndexFunc(all, func(c *claim) bool { return c.Name == w.claim && c.Namespace == pod.Namespace })
		if i < 0 {
			return nil, errors.Join(fmt.Errorf("resource claim %s is not prepared", w.claim), unread)
		}
		g := Given{Namespace: pod.Namespace, Claim: w.claim}
		for _, driver := range slices.Sorted(maps.Keys(all[i].Drivers)) {
			p := all[i].Drivers[driver]
			if !p.Done {
				return nil, fmt.Errorf("resource claim %s is not prepared by driver %s", w.claim, driver)
			}
			for _, d := range p.Devices {
				if w.fits(d) {
					g.Devices = append(g.Devices, GivenDevice{driver, d})
				}
			}
		}
		out = append(out, g)
	}
	return out, nil
}

// want is a claim, or a request of it, that a container uses. An empty request stands for all.
type want struct{ claim, request string }

func (w want) fits(d Device) bool {
	return w.request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
		return r == w.request || resourceclaim.BaseRequestRef(r) == w.request
	})
}

func wantsOf(pod *v1.Pod, c *v1.Container) ([]want, error) {
	var out []want
	for _, ref := range c.Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(p v1.PodResourceClaim) bool { return p.Name == ref.Name })
		if i < 0 {
			return nil, fmt.Errorf("container %s uses the resource claim %s, which the pod does not have", c.Name, ref.Name)
		}
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != nil {
			out = append(out, want{*name, ref.Request})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, r := range s.RequestMappings {
			if r.ContainerName == c.Name {
				out = append(out, want{s.ResourceClaimName, r.RequestName})
			}
		}
	}
	return out, nil
}

// driver returns the instance of a driver that is to be called. If there is none, the pod waits for it.
func (m *Manager) driver(pod types.UID, name string) (*instance, error) {
	in, err := m.get(name)
	if err != nil {
		m.await(pod, name)
	}
	return in, err
}

// await has the pod retried when a driver comes that is not there; one that fails may need time.
func (m *Manager) await(pod types.UID, driver string) {
	if m.Connected(driver) {
		return
	}
	m.mu.Lock()
	m.waiting[pod] = driver
	m.mu.Unlock()
	if m.Connected(driver) { // it has come meanwhile
		m.came(driver)
	}
}

func (m *Manager) stopWaiting(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, pod)
}

// came lets the pods go on that wait for a driver.
func (m *Manager) came(driver string) {
	m.mu.Lock()
	var pods []types.UID
	for pod, waits := range m.waiting {
		if waits == driver {
			pods = append(pods, pod)
			delete(m.waiting, pod)
		}
	}
	m.mu.Unlock()
	for _, pod := range pods {
		if m.Retry != nil {
			m.Retry(pod)
		}
	}
}

// keys lets one pod at a time work on a claim.
type keys struct {
	mu   sync.Mutex
	held map[types.UID]chan struct{} // closed when it is let go
}

// lock waits until nobody else works on any of the claims. All lock in the order of the claims' UIDs.
func (k *keys) lock(ctx context.Context, claims []*claim) (unlock func(), err error) {
	slices.SortFunc(claims, func(a, b *claim) int { return strings.Compare(string(a.UID), string(b.UID)) })
	var mine []types.UID
	unlock = func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, uid := range mine {
			close(k.held[uid])
			delete(k.held, uid)
		}
	}
	for _, c := range claims {
		for taken := false; !taken; {
			k.mu.Lock()
			before := k.held[c.UID]
			if taken = before == nil; taken {
				if k.held == nil {
					k.held = map[types.UID]chan struct{}{}
				}
				k.held[c.UID] = make(chan struct{})
				mine = append(mine, c.UID)
			}
			k.mu.Unlock()
			if taken {
				break
			}
			select {
			case <-before:
			case <-ctx.Done():
				unlock()
				return nil, fmt.Errorf("resource claim %s is being prepared for another pod, or taken back from it: %w", c.Name, context.Cause(ctx))
			}
		}
	}
	return unlock, nil
}
