package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

var podResource = schema.GroupResource{Resource: "pods"}

// apiServer holds one pod, or none any more.
type apiServer struct {
	hist    *history
	changed func() // called without the lock after every change

	mu  sync.Mutex
	pod *v1.Pod // never changed in place
	// last is the pod as it was when it went.
	last *v1.Pod
}

func (a *apiServer) get() (pod, last *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pod, a.last
}

// update changes the pod; one that is gone stays so.
func (a *apiServer) update(change func(*v1.Pod)) {
	a.mu.Lock()
	if a.pod == nil {
		a.mu.Unlock()
		return
	}
	p := a.pod.DeepCopy()
	change(p)
	a.pod = p
	a.mu.Unlock()
	a.changed()
}

// remove takes the object away.
func (a *apiServer) remove() {
	a.mu.Lock()
	if a.pod != nil {
		a.last, a.pod = a.pod, nil
	}
	a.mu.Unlock()
	a.changed()
}

func (a *apiServer) patchStatus(uid types.UID, data []byte) (*v1.Pod, error) {
	a.mu.Lock()
	if a.pod == nil {
		a.mu.Unlock()
		return nil, apierrors.NewNotFound(podResource, "p")
	}
	var meta metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &meta); err != nil {
		a.mu.Unlock()
		return nil, err
	}
	if meta.UID != "" && meta.UID != uid {
		a.mu.Unlock()
		return nil, apierrors.NewConflict(podResource, "p", fmt.Errorf("UID is %s", uid))
	}
	before, err := json.Marshal(v1.Pod{Status: a.pod.Status})
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, data, v1.Pod{})
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	patched := &v1.Pod{}
	if err := json.Unmarshal(after, patched); err != nil {
		a.mu.Unlock()
		return nil, err
	}
	p := a.pod.DeepCopy()
	p.Status = patched.Status
	a.pod = p
	a.hist.add(Event{What: StatusWritten, Status: p.Status.DeepCopy()})
	a.mu.Unlock()
	a.changed()
	return p, nil
}

// client is what one life of the kubelet has of the API server.
type client struct {
	kubernetes.Interface
	n *node
}

func (c client) CoreV1() corev1.CoreV1Interface { return core{n: c.n} }

type core struct {
	corev1.CoreV1Interface
	n *node
}

func (c core) Pods(string) corev1.PodInterface { return pods{n: c.n} }

type pods struct {
	corev1.PodInterface
	n *node
}

func (p pods) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*v1.Pod, error) {
	return call(ctx, p.n, "api get", "", func(context.Context) (*v1.Pod, error) {
		if pod, _ := p.n.life.api.get(); pod != nil {
			return pod, nil
		}
		return nil, apierrors.NewNotFound(podResource, "p")
	})
}

func (p pods) Patch(ctx context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*v1.Pod, error) {
	return call(ctx, p.n, "api patch", "", func(context.Context) (*v1.Pod, error) {
		return p.n.life.api.patchStatus(p.n.life.uid, data)
	})
}

func (p pods) Delete(ctx context.Context, _ string, _ metav1.DeleteOptions) error {
	_, err := call(ctx, p.n, "api delete", "", func(context.Context) (struct{}, error) {
		pod, _ := p.n.life.api.get()
		if pod == nil {
			return struct{}{}, apierrors.NewNotFound(podResource, "p")
		}
		p.n.life.hist.add(Event{What: ObjectGone})
		p.n.life.api.remove()
		return struct{}{}, nil
	})
	return err
}
