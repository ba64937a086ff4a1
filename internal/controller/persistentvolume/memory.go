package persistentvolume

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// promises are the volumes that claims of this process are just getting, so that others do not try as well. What the
// API server accepts does not depend on it. A claim has one promise at most. The methods may be called concurrently.
type promises struct {
	mu      sync.Mutex
	byName  map[string]promise
	byClaim map[types.UID]string
}

// promise holds while the informer has the volume in the version in which it was free.
type promise struct {
	version string
	claim   types.UID
}

func newPromises() *promises {
	return &promises{byName: map[string]promise{}, byClaim: map[types.UID]string{}}
}

// take promises the volume to the claim, and reports whether that was possible.
func (p *promises) take(pv *v1.PersistentVolume, claim types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if other, ok := p.byName[pv.Name]; ok && other.version == pv.ResourceVersion && other.claim != claim {
		return false
	}
	p.endLocked(pv.Name)
	p.endLocked(p.byClaim[claim])
	p.byName[pv.Name], p.byClaim[claim] = promise{pv.ResourceVersion, claim}, pv.Name
	return true
}

// release ends the promise that a claim has.
func (p *promises) release(claim types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(p.byClaim[claim])
}

// saw ends the promise of a volume that the informer has in another version, or not any more ("").
func (p *promises) saw(name, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName[name].version != version {
		p.endLocked(name)
	}
}

func (p *promises) endLocked(name string) {
	delete(p.byClaim, p.byName[name].claim)
	delete(p.byName, name)
}

// said is the last that was said of each object, so that it is not said again whenever somebody looks at it. Its
// methods may be called concurrently.
type said struct {
	mu   sync.Mutex
	last map[types.UID]saying
}

func newSaid() *said { return &said{last: map[types.UID]saying{}} }

// news reports whether something else was said of the object last, and notes it.
func (s *said) news(obj metav1.Object, what saying) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last[obj.GetUID()] == what {
		return false
	}
	s.last[obj.GetUID()] = what
	return true
}

// forget is for objects that are gone, or of which there is nothing to say any more.
func (s *said) forget(obj metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, obj.GetUID())
}
