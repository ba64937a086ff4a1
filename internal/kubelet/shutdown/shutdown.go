// Package shutdown ends the pods of a node before the machine shuts down (KEP-2000): it holds a
// delay lock of logind, learns from it that the machine is about to shut down, ends the pods in
// groups by priority, and then releases the lock.
//
// Without D-Bus or logind it cannot learn of shutdowns, and says so.
package shutdown

import (
	"cmp"
	"context"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/api/pods"
)

// What the status says of a pod that a shutdown ended, and of one that is not admitted any more.
const (
	ReasonTerminated    = "Terminated"
	MessageTerminated   = "Pod was terminated in response to imminent node shutdown."
	ReasonNotAdmitted   = "NodeShutdown"
	MessageNotAdmitted  = "Pod was rejected as the node is shutting down."
	MessageShuttingDown = "node is shutting down"
)

// Period is how much time pods get, from a priority upwards.
type Period = kubeletconfig.ShutdownGracePeriodByPodPriority

// Periods returns the configured periods, lowest priority first; none if graceful shutdown is off.
func Periods(k *kubeletconfig.KubeletConfiguration) []Period {
	list := slices.Clone(k.ShutdownGracePeriodByPodPriority)
	if whole := k.ShutdownGracePeriod.Duration; len(list) == 0 && whole > 0 {
		critical := k.ShutdownGracePeriodCriticalPods.Duration
		list = []Period{
			{Priority: 0, ShutdownGracePeriodSeconds: int64((whole - critical) / time.Second)},
			{Priority: pods.ClusterCriticalPriority, ShutdownGracePeriodSeconds: int64(critical / time.Second)},
		}
	}
	slices.SortFunc(list, func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	return list
}

func total(periods []Period) time.Duration {
	var sum int64
	for _, p := range periods {
		sum += p.ShutdownGracePeriodSeconds
	}
	return time.Duration(sum) * time.Second
}

// group is a group of pods that end together.
type group struct {
	grace time.Duration
	pods  []*v1.Pod
}

// groups assigns each pod to the highest period whose priority it reaches, and pods below all
// periods to the lowest.
func groups(periods []Period, pods []*v1.Pod) []group {
	out := make([]group, len(periods))
	for i, p := range periods {
		out[i].grace = time.Duration(p.ShutdownGracePeriodSeconds) * time.Second
	}
	for _, pod := range pods {
		var priority int32
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		at := 0
		for i := range periods {
			if periods[i].Priority <= priority {
				at = i
			}
		}
		out[at].pods = append(out[at].pods, pod)
	}
	return out
}

// Login is what shutdown needs of logind.
type Login interface {
	// Reserve makes logind wait that long for holders of delay locks.
	Reserve(ctx context.Context, d time.Duration) error
	// Inhibit takes a delay lock; closing it releases the lock.
	Inhibit(ctx context.Context) (io.Closer, error)
	// Shutdowns reports each shutdown that begins (true) or is canceled (false); the channel is
	// closed with the connection.
	Shutdowns(ctx context.Context) (<-chan bool, error)
	Close() error
}

// Node is the node whose pods are ended.
type Node interface {
	// Active returns the pods that have not ended and are not about to be removed.
	Active() []*v1.Pod
	// End begins to end a pod, with a grace period in seconds.
	End(pod *v1.Pod, grace int64)
	// Ended waits until a pod is terminated, or the context ends.
	Ended(ctx context.Context, pod *v1.Pod)
	// ShuttingDown says that the machine is shutting down, or that it is not after all.
	ShuttingDown(ctx context.Context, down bool)
}

// Manager waits for shutdowns.
type Manager struct {
	Periods []Period
	Node    Node
	// Dir is where the StateFile is.
	Dir string
	// Dial connects to logind.
	Dial func(ctx context.Context) (Login, error)

	state state
}

// Run waits for shutdowns until the context ends, if pods get any time.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.Periods) == 0 {
		return nil
	}
	log := klog.FromContext(ctx)
	m.state.path = filepath.Join(m.Dir, StateFile)
	m.state.load(ctx)
	const first, most = time.Second, 5 * time.Minute
	for wait := first; ctx.Err() == nil; wait = min(wait*2, most) {
		began := time.Now()
		if err := m.watch(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "Graceful node shutdown is unavailable, will retry", "after", wait)
		}
		if time.Since(began) > most {
			wait = first
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

// watch holds a lock and acts on shutdowns as long as the connection to logind lasts.
func (m *Manager) watch(ctx context.Context) error {
	login, err := m.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = login.Close() }()
	if err := login.Reserve(ctx, total(m.Periods)); err != nil {
		return err
	}
	var lock io.Closer
	release := func() error {
		if lock == nil {
			return nil
		}
		held := lock
		lock = nil
		return held.Close()
	}
	defer func() { _ = release() }()
	if lock, err = login.Inhibit(ctx); err != nil {
		return err
	}
	shutdowns, err := login.Shutdowns(ctx)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case down, ok := <-shutdowns:
			if !ok {
				return io.ErrUnexpectedEOF
			}
			m.Node.ShuttingDown(ctx, down)
			if down {
				m.state.note(ctx, times{StartTime: time.Now()})
				m.end(ctx)
				m.state.note(ctx, times{StartTime: m.state.last.StartTime, EndTime: time.Now()})
				err = release()
			} else if lock == nil { // it was canceled
				lock, err = login.Inhibit(ctx)
			}
			if err != nil {
				return err
			}
		}
	}
}

// end ends all pods, lowest priority first. A group that has not ended when its time is over keeps
// running while the next one ends.
func (m *Manager) end(ctx context.Context) {
	log := klog.FromContext(ctx)
	for i, g := range groups(m.Periods, m.Node.Active()) {
		if len(g.pods) == 0 {
			continue
		}
		log.Info("Terminating pods because the node is shutting down", "priority", m.Periods[i].Priority, "pods", len(g.pods), "gracePeriod", g.grace)
		for _, pod := range g.pods {
			grace := int64(g.grace / time.Second)
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil && *own < grace {
				grace = *own
			}
			m.Node.End(pod, grace)
		}
		m.await(ctx, g)
	}
}

func (m *Manager) await(ctx context.Context, g group) {
	ctx, cancel := context.WithTimeout(ctx, g.grace)
	defer cancel()
	var all sync.WaitGroup
	for _, pod := range g.pods {
		all.Go(func() { m.Node.Ended(ctx, pod) })
	}
	all.Wait()
}
