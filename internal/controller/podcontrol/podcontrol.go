// Package podcontrol has what the controllers of workloads do with their pods in the same way: they
// claim them, create them from a template, and delete them. Each write is noted in a Log (package
// written), and told in an event of the owner, with upstream's reasons and messages.
package podcontrol

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

// Owner is an object that has pods.
type Owner interface {
	metav1.Object
	runtime.Object
}

// Control writes the pods of owners of one kind.
type Control struct {
	Client clientset.Interface
	Kind   schema.GroupVersionKind
	// Writes has what was written, by the owner's key.
	Writes *written.Log
	Events record.EventRecorder
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// Claimer returns what claims pods for the owner. live reads the owner from the API server itself.
func (c *Control) Claimer(owner Owner, matches func(*v1.Pod) bool, live claim.Live) claim.Owner[*v1.Pod] {
	return claim.Owner[*v1.Pod]{
		Object: owner, Kind: c.Kind, Matches: matches, Live: live,
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error {
			got, err := c.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				c.Writes.Wrote(keyOf(owner), got)
			}
			return err
		},
	}
}

// Create makes one pod. In a namespace that is being deleted nothing can be created, and nothing has
// to be.
func (c *Control) Create(ctx context.Context, owner Owner, pod *v1.Pod) error {
	got, err := c.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		c.Events.Eventf(owner, v1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		return err
	}
	c.Writes.Wrote(keyOf(owner), got)
	c.Events.Eventf(owner, v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", got.Name)
	return nil
}

// Delete deletes one pod. One that is gone is just what was wanted.
func (c *Control) Delete(ctx context.Context, owner Owner, p *v1.Pod) error {
	deleted, err := c.Remove(ctx, owner, p)
	if err != nil {
		c.Events.Eventf(owner, v1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	if deleted {
		c.Events.Eventf(owner, v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
	}
	return nil
}

// Remove is Delete without events. It reports whether there was this pod. A conflict is an error, which
// a Loop retries in silence: there is another pod of its name, which the informer will tell, or a webhook
// does not want the deletion now.
func (c *Control) Remove(ctx context.Context, owner Owner, p *v1.Pod) (bool, error) {
	err := c.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	c.Writes.Deleted(keyOf(owner), p)
	return err == nil, nil
}

// Label gives one pod labels. One that is gone needs none.
func (c *Control) Label(ctx context.Context, owner metav1.Object, p *v1.Pod, labels map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "labels": labels}})
	if err != nil {
		return err
	}
	got, err := c.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // the UID is another one's
		return nil
	}
	if err != nil {
		return fmt.Errorf("label pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	c.Writes.Wrote(keyOf(owner), got)
	return nil
}
