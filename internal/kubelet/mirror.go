package kubelet

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/podconfig"
)

// mirrors keeps an object in the API for each static pod, so that people see it.
// It is the only writer of those objects; their status goes through package status.
type mirrors struct {
	k    *Kubelet
	wake chan struct{}

	mu     sync.Mutex
	static map[types.NamespacedName]*v1.Pod
	mirror map[types.NamespacedName]*v1.Pod
}

func newMirrors(k *Kubelet) *mirrors {
	return &mirrors{
		k: k, wake: make(chan struct{}, 1),
		static: map[types.NamespacedName]*v1.Pod{}, mirror: map[types.NamespacedName]*v1.Pod{},
	}
}

func nameOf(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

func (m *mirrors) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// setStatic takes the set of static pods.
func (m *mirrors) setStatic(pods []*v1.Pod) {
	m.mu.Lock()
	m.static = map[types.NamespacedName]*v1.Pod{}
	for _, p := range pods {
		m.static[nameOf(p)] = p
	}
	m.mu.Unlock()
	m.poke()
}

// setMirror takes what the API server has; gone: not any more.
func (m *mirrors) setMirror(pod *v1.Pod, gone bool) {
	m.mu.Lock()
	key := nameOf(pod)
	if gone {
		delete(m.mirror, key)
	} else {
		m.mirror[key] = pod
	}
	static := m.static[key]
	m.mu.Unlock()
	if static != nil {
		m.link(static, pod, gone)
	}
	m.poke()
}

// link tells the status manager which object shows the static pod's status.
func (m *mirrors) link(static, mirror *v1.Pod, gone bool) {
	if gone || mirror.DeletionTimestamp != nil || !reflects(static, mirror) {
		mirror = nil
	}
	m.k.status.SetMirror(static.UID, mirror)
}

// reflects tells whether an object mirrors this very static pod.
func reflects(static, mirror *v1.Pod) bool {
	return mirror.Annotations[podconfig.AnnotationConfigMirror] == static.Annotations[podconfig.AnnotationConfigHash]
}

// run makes the API server's objects follow the static pods.
func (m *mirrors) run(ctx context.Context) error {
	const first, most = 100 * time.Millisecond, 10 * time.Second
	wait := first
	for {
		err := m.sync(ctx)
		var again <-chan time.Time
		timer := time.NewTimer(wait)
		if err != nil {
			if ctx.Err() == nil && wait > time.Second {
				klog.FromContext(ctx).Error(err, "Mirror pods are not in sync")
			}
			again = timer.C
			wait = min(wait*2, most)
		} else {
			wait = first
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-m.wake:
		case <-again:
		}
		timer.Stop()
	}
}

func (m *mirrors) sync(ctx context.Context) error {
	if !m.k.apiSynced.Load() {
		return nil
	}
	m.mu.Lock()
	var create, remove []*v1.Pod
	for key, s := range m.static {
		if have := m.mirror[key]; have == nil {
			create = append(create, s)
		} else if !reflects(s, have) || have.DeletionTimestamp != nil {
			remove = append(remove, have)
		}
	}
	for key, have := range m.mirror {
		if m.static[key] == nil {
			remove = append(remove, have)
		}
	}
	m.mu.Unlock()
	for _, p := range remove {
		if err := m.remove(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range create {
		if err := m.create(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (m *mirrors) remove(ctx context.Context, p *v1.Pod) error {
	err := m.k.deps.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete mirror pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

func (m *mirrors) create(ctx context.Context, static *v1.Pod) error {
	node := m.k.node.Node()
	if node.UID == "" {
		return fmt.Errorf("node %s is not registered yet", m.k.cfg.NodeName)
	}
	pod := static.DeepCopy()
	pod.UID, pod.ResourceVersion = "", ""
	pod.Annotations[podconfig.AnnotationConfigMirror] = static.Annotations[podconfig.AnnotationConfigHash]
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true),
	}}
	made, err := m.k.deps.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch will show which one it is
	}
	if err != nil {
		return fmt.Errorf("create mirror pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	m.setMirror(made, false)
	return nil
}
