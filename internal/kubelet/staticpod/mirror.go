package staticpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
)

func nameOf(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Poke makes Run look again.
func (p *Pods) Poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// SetMirror takes over what the API server has; with gone, the mirror no longer exists.
func (p *Pods) SetMirror(mirror *v1.Pod, gone bool) {
	p.mu.Lock()
	key := nameOf(mirror)
	have := p.mirror[key]
	switch {
	case !gone:
		p.mirror[key] = mirror
	case have != nil && have.UID == mirror.UID: // a newer one may have been created already
		delete(p.mirror, key)
	}
	if gone {
		delete(p.over, mirror.UID)
	}
	if static := p.static[key]; static != nil {
		p.linkLocked(static)
	}
	p.mu.Unlock()
	p.Poke()
}

// linkLocked sets which object the status manager writes the static pod's status to.
func (p *Pods) linkLocked(static *v1.Pod) {
	mirror := p.mirror[nameOf(static)]
	if mirror != nil && (mirror.DeletionTimestamp != nil || p.over[mirror.UID] || !reflects(static, mirror)) {
		mirror = nil
	}
	p.deps.Status.SetMirror(static.UID, mirror)
}

// reflects reports whether an object mirrors this very static pod.
func reflects(static, mirror *v1.Pod) bool {
	return mirror.Annotations[pods.AnnotationConfigMirror] == static.Annotations[pods.AnnotationConfigHash]
}

// Run makes the API server's objects follow the static pods until the context ends.
func (p *Pods) Run(ctx context.Context) error {
	const first, most = 100 * time.Millisecond, 10 * time.Second
	wait := first
	for {
		err := p.sync(ctx)
		var again <-chan time.Time
		timer := time.NewTimer(wait)
		if err != nil {
			if ctx.Err() == nil && wait > time.Second {
				klog.FromContext(ctx).Error(err, "Failed to sync mirror pods, will retry")
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
		case <-p.wake:
		case <-again:
		}
		timer.Stop()
	}
}

// sync removes the mirrors that are not needed, and creates those that are missing. As long as a pod of the name has not
// gone yet, its mirror stays, and shows that it is there.
func (p *Pods) sync(ctx context.Context) error {
	if !p.deps.Listed() {
		return nil
	}
	settled := p.deps.Settled()
	lingering := p.deps.Table.Lingering()
	p.mu.Lock()
	var create, remove []*v1.Pod
	for key, s := range p.static {
		have := p.mirror[key]
		switch {
		case have != nil && have.DeletionTimestamp != nil:
			remove = append(remove, have)
		case lingering.Has(key):
		case have == nil:
			create = append(create, s)
		case p.over[have.UID] || !reflects(s, have):
			remove = append(remove, have)
		}
	}
	for key, have := range p.mirror {
		if p.static[key] == nil && settled && (have.DeletionTimestamp != nil || !lingering.Has(key)) {
			remove = append(remove, have)
		}
	}
	p.mu.Unlock()
	var errs []error // one that the API server refuses must not keep the others from showing
	for _, pod := range remove {
		errs = append(errs, p.remove(ctx, pod))
	}
	for _, pod := range create {
		errs = append(errs, p.create(ctx, pod))
	}
	return errors.Join(errs...)
}

func (p *Pods) remove(ctx context.Context, mirror *v1.Pod) error {
	err := p.deps.Client.CoreV1().Pods(mirror.Namespace).Delete(ctx, mirror.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &mirror.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete mirror pod %s/%s: %w", mirror.Namespace, mirror.Name, err)
	}
	return nil
}

func (p *Pods) create(ctx context.Context, static *v1.Pod) error {
	node := p.deps.Node()
	if node.UID == "" {
		return errors.New("the node is not registered yet")
	}
	pod := static.DeepCopy()
	pod.UID, pod.ResourceVersion = "", ""
	pod.Annotations[pods.AnnotationConfigMirror] = static.Annotations[pods.AnnotationConfigHash]
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true),
	}}
	// Only the watch shows what exists: this response may arrive after the object is gone.
	_, err := p.deps.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create mirror pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
