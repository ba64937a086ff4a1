package sim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	nodev1client "k8s.io/client-go/kubernetes/typed/node/v1"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
)

var podResource = schema.GroupResource{Resource: "pods"}

// apiServer holds one pod, or none after it has gone. For a static pod it holds the mirror.
type apiServer struct {
	hist    *history
	changed func() // called without the lock after every change
	made    int    // mirrors

	mu      sync.Mutex
	version int
	pod     *v1.Pod // never changed in place
	// last is the pod as it was when it was removed.
	last *v1.Pod
}

func (a *apiServer) get() (pod, last *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pod, a.last
}

// update changes the pod; if it is gone, it stays gone.
func (a *apiServer) update(change func(*v1.Pod)) {
	a.mu.Lock()
	if a.pod == nil {
		a.mu.Unlock()
		return
	}
	p := a.pod.DeepCopy()
	change(p)
	a.storeLocked(p)
	a.mu.Unlock()
	a.changed()
}

// storeLocked makes a pod the newest version.
func (a *apiServer) storeLocked(p *v1.Pod) {
	a.version++
	p.ResourceVersion = strconv.Itoa(a.version)
	a.pod = p
}

// remove removes the object.
func (a *apiServer) remove() {
	a.mu.Lock()
	if a.pod != nil {
		a.last, a.pod = a.pod, nil
	}
	a.mu.Unlock()
	a.changed()
}

// create makes a mirror.
func (a *apiServer) create(pod *v1.Pod) (*v1.Pod, error) {
	a.mu.Lock()
	if a.pod != nil {
		a.mu.Unlock()
		return nil, apierrors.NewAlreadyExists(podResource, "p")
	}
	a.made++
	p := pod.DeepCopy()
	p.UID, p.Status = types.UID(fmt.Sprintf("mirror-%d", a.made)), fresh(pod)
	a.storeLocked(p)
	a.hist.add(Event{What: Note, Text: fmt.Sprintf("%s of %s is made", p.UID, staticOf(p))})
	a.mu.Unlock()
	a.changed()
	return p, nil
}

// fresh returns the status that the API server gives a new pod.
func fresh(pod *v1.Pod) v1.PodStatus {
	return v1.PodStatus{Phase: v1.PodPending, QOSClass: qos.GetPodQOS(pod)}
}

// staticOf returns the UID of the static pod that a mirror shows, or else the pod's own.
func staticOf(p *v1.Pod) types.UID {
	if pods.IsMirror(p) {
		return types.UID(p.Annotations[pods.AnnotationConfigMirror])
	}
	return p.UID
}

func (a *apiServer) patchStatus(data []byte) (*v1.Pod, error) {
	a.mu.Lock()
	if a.pod == nil {
		a.mu.Unlock()
		return nil, apierrors.NewNotFound(podResource, "p")
	}
	var patch strategicpatch.JSONMap
	if err := utiljson.Unmarshal(data, &patch); err != nil {
		a.mu.Unlock()
		return nil, err
	}
	meta, _ := patch["metadata"].(map[string]any)
	if uid, _ := meta["uid"].(string); uid != "" && types.UID(uid) != a.pod.UID {
		uid := a.pod.UID
		a.mu.Unlock()
		return nil, apierrors.NewConflict(podResource, "p", fmt.Errorf("UID is %s", uid))
	}
	st, err := patched(&a.pod.Status, patch)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	p, err := a.writeLocked(st)
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a.changed()
	return p, nil
}

// updateStatus replaces the status of the version that the caller knows.
func (a *apiServer) updateStatus(next *v1.Pod) (*v1.Pod, error) {
	a.mu.Lock()
	p, err := a.replaceLocked(next)
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a.changed()
	return p, nil
}

func (a *apiServer) replaceLocked(next *v1.Pod) (*v1.Pod, error) {
	switch {
	case a.pod == nil:
		return nil, apierrors.NewNotFound(podResource, "p")
	case next.UID != a.pod.UID:
		return nil, apierrors.NewConflict(podResource, "p", fmt.Errorf("UID is %s", a.pod.UID))
	case next.ResourceVersion == "":
		a.hist.fail(errors.New("a status is written over any other"))
		return nil, apierrors.NewBadRequest("no version")
	case next.ResourceVersion != a.pod.ResourceVersion:
		return nil, apierrors.NewConflict(podResource, "p", fmt.Errorf("version is %s", a.pod.ResourceVersion))
	}
	return a.writeLocked(&next.Status)
}

// writeLocked gives the pod another status, if that may follow the current one; neither the old nor
// the new one is changed.
func (a *apiServer) writeLocked(st *v1.PodStatus) (*v1.Pod, error) {
	p := *a.pod
	p.Status = *st
	if errs := validation.PodStatus(&p, a.pod); len(errs) > 0 {
		err := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, p.Name, errs)
		a.hist.fail(fmt.Errorf("%w, from %s to %s", err, statusText(&a.pod.Status), statusText(st)))
		return nil, err
	}
	a.storeLocked(&p)
	a.hist.add(Event{What: StatusWritten, UID: staticOf(&p), Status: st})
	return &p, nil
}

var podMeta = sync.OnceValues(func() (strategicpatch.PatchMetaFromStruct, error) {
	return strategicpatch.NewPatchMetaFromStruct(v1.Pod{})
})

// patched returns a status with a strategic merge patch of its pod applied. Only the fields in the
// patch are merged: converting the others would take most of the time.
func patched(st *v1.PodStatus, patch strategicpatch.JSONMap) (*v1.PodStatus, error) {
	schema, err := podMeta()
	if err != nil {
		return nil, err
	}
	fields := touchedBy(patch)
	touched := &v1.PodStatus{}
	copyFields(touched, st, fields)
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(touched)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(strategicpatch.JSONMap{"status": before}, patch, schema)
	if err != nil {
		return nil, err
	}
	merged := &v1.PodStatus{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(after["status"].(map[string]any), merged); err != nil {
		return nil, err
	}
	out := *st
	copyFields(&out, merged, fields)
	return &out, nil
}

// touchedBy returns the fields of the status that a patch has. It has to be called before the
// merge, which takes the patch to pieces.
func touchedBy(patch strategicpatch.JSONMap) map[string]bool {
	has := map[string]bool{}
	changes, _ := patch["status"].(map[string]any)
	for key := range changes {
		_, field, directive := strings.Cut(key, "/")
		if !directive {
			field = key
		}
		has[field] = true
	}
	return has
}

func copyFields(to, from *v1.PodStatus, fields map[string]bool) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Type().Field(i).Tag.Get("json"), ","); fields[name] {
			t.Field(i).Set(f.Field(i))
		}
	}
}

// client is what one life of the kubelet sees of the API server.
type client struct {
	kubernetes.Interface
	n *node
}

func (c client) CoreV1() corev1.CoreV1Interface       { return core{n: c.n} }
func (c client) NodeV1() nodev1client.NodeV1Interface { return nodeAPI{n: c.n} }

type core struct {
	corev1.CoreV1Interface
	n *node
}

func (c core) Pods(string) corev1.PodInterface { return podClient{n: c.n} }
func (c core) ConfigMaps(ns string) corev1.ConfigMapInterface {
	return configMaps{n: c.n, namespace: ns}
}
func (c core) Secrets(ns string) corev1.SecretInterface { return secrets{n: c.n, namespace: ns} }

func (c core) ServiceAccounts(string) corev1.ServiceAccountInterface { return accounts{n: c.n} }

// accounts issue tokens.
type accounts struct {
	corev1.ServiceAccountInterface
	n *node
}

// tokenForm is the form of a token: the UID of its pod, and how long it is valid.
const tokenForm = "token %s until %d"

func (a accounts) CreateToken(ctx context.Context, name string, req *authenticationv1.TokenRequest, _ metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	return call(ctx, a.n, "api token", name, func(context.Context) (*authenticationv1.TokenRequest, error) {
		out := req.DeepCopy()
		end := time.Now().Add(time.Duration(*req.Spec.ExpirationSeconds) * time.Second)
		out.Status = authenticationv1.TokenRequestStatus{
			Token: fmt.Sprintf(tokenForm, req.Spec.BoundObjectRef.UID, end.Unix()), ExpirationTimestamp: metav1.NewTime(end),
		}
		return out, nil
	})
}

// classes are the runtime classes of the cluster.
type classes struct {
	nodev1client.RuntimeClassInterface
	n *node
}

type nodeAPI struct {
	nodev1client.NodeV1Interface
	n *node
}

func (a nodeAPI) RuntimeClasses() nodev1client.RuntimeClassInterface { return classes{n: a.n} }

func (c classes) Get(ctx context.Context, name string, _ metav1.GetOptions) (*nodev1.RuntimeClass, error) {
	return call(ctx, c.n, "api get", name, func(context.Context) (*nodev1.RuntimeClass, error) {
		handler := handlerFast
		switch {
		case name == classOrphan:
			handler = classOrphan
		case name == classLost, name == classLate && c.n.life.faulty():
			return nil, apierrors.NewNotFound(schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}, name)
		}
		return &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}, nil
	})
}

type podClient struct {
	corev1.PodInterface
	n *node
}

func (p podClient) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*v1.Pod, error) {
	return call(ctx, p.n, "api get", "", func(context.Context) (*v1.Pod, error) {
		if pod, _ := p.n.life.api.get(); pod != nil {
			return pod, nil
		}
		return nil, apierrors.NewNotFound(podResource, "p")
	})
}

func (p podClient) Patch(ctx context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*v1.Pod, error) {
	return call(ctx, p.n, "api patch", "", func(context.Context) (*v1.Pod, error) {
		return p.n.life.api.patchStatus(data)
	})
}

func (p podClient) UpdateStatus(ctx context.Context, pod *v1.Pod, _ metav1.UpdateOptions) (*v1.Pod, error) {
	return call(ctx, p.n, "api update", "", func(context.Context) (*v1.Pod, error) {
		return p.n.life.api.updateStatus(pod)
	})
}

func (p podClient) Create(ctx context.Context, pod *v1.Pod, _ metav1.CreateOptions) (*v1.Pod, error) {
	return call(ctx, p.n, "api create", "", func(context.Context) (*v1.Pod, error) { return p.n.life.api.create(pod) })
}

func (p podClient) Delete(ctx context.Context, _ string, opts metav1.DeleteOptions) error {
	_, err := call(ctx, p.n, "api delete", "", func(context.Context) (struct{}, error) {
		pod, _ := p.n.life.api.get()
		if pod == nil {
			return struct{}{}, apierrors.NewNotFound(podResource, "p")
		}
		if opts.Preconditions != nil && opts.Preconditions.UID != nil && *opts.Preconditions.UID != pod.UID {
			return struct{}{}, apierrors.NewConflict(podResource, "p", fmt.Errorf("UID is %s", pod.UID))
		}
		if pods.IsMirror(pod) {
			p.n.life.hist.add(Event{What: Note, Text: string(pod.UID) + " is deleted"})
		} else {
			p.n.life.hist.add(Event{What: ObjectGone, UID: pod.UID})
		}
		p.n.life.api.remove()
		return struct{}{}, nil
	})
	return err
}
