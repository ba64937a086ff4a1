package sim

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podops"
)

// claims is what is noted and prepared of the pods' devices; both outlive the kubelet.
type claims struct {
	mu       sync.Mutex
	devices  bool               // pods of this life have some
	noted    map[types.UID]bool // before the driver is asked
	prepared map[types.UID]bool // by the driver
}

func newClaims(devices bool) *claims {
	return &claims{devices: devices, noted: map[types.UID]bool{}, prepared: map[types.UID]bool{}}
}

func (c *claims) set(m map[types.UID]bool, uid types.UID, to bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to {
		m[uid] = true
	} else {
		delete(m, uid)
	}
}

func (c *claims) has(m map[types.UID]bool, uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return m[uid]
}

// left returns how many pods have something noted or prepared.
func (c *claims) left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(len(c.noted), len(c.prepared))
}

// lacks reports whether a pod should have devices and has none.
func (c *claims) lacks(uid types.UID) bool { return c.devices && !c.has(c.prepared, uid) }

// faultyClaims is the driver as one life of the kubelet sees it.
type faultyClaims struct {
	*claims
	n *node
}

var _ podops.Claims = faultyClaims{}

func (f faultyClaims) Prepare(ctx context.Context, pod *v1.Pod) error {
	if !f.devices {
		return nil
	}
	f.set(f.noted, pod.UID, true)
	_, err := call(ctx, f.n, "PrepareClaims", string(pod.UID), func(context.Context) (struct{}, error) {
		f.set(f.prepared, pod.UID, true)
		return struct{}{}, nil
	})
	return err
}

func (f faultyClaims) Unprepare(ctx context.Context, pod *v1.Pod) error {
	uid := pod.UID
	if !f.Left(pod) {
		return nil
	}
	_, err := call(ctx, f.n, "UnprepareClaims", string(uid), func(context.Context) (struct{}, error) {
		f.set(f.prepared, uid, false)
		return struct{}{}, nil
	})
	if err == nil {
		f.set(f.noted, uid, false)
	}
	return err
}

func (f faultyClaims) Left(pod *v1.Pod) bool { return f.has(f.noted, pod.UID) }

func (f faultyClaims) Container(pod *v1.Pod, c *v1.Container) ([]string, error) {
	switch {
	case !f.devices:
		return nil, nil
	case f.lacks(pod.UID):
		err := fmt.Errorf("%s of %s is created before its devices are prepared", c.Name, pod.UID)
		f.n.life.hist.fail(err)
		return nil, err
	}
	return []string{"example.com/device=0"}, nil
}
