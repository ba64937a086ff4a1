// Package expand says who makes a volume larger whose claim asks for more, under the name
// persistentvolume-expander-controller. It makes none larger itself: a driver's external-resizer does, or the provisioner
// of local volumes, and then writes the volume's new size, and the claim's. If a driver has taken over from one of
// Kubernetes' own kinds of volumes, its resizer finds its name in the claim's annotations.
package expand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"

	"wherry.dev/internal/controller"
)

// resizer is the annotation that names who resizes a claim's volume.
const resizer = "volume.kubernetes.io/storage-resizer"

// translator knows the CSI drivers that have taken over from Kubernetes' own kinds of volumes.
var translator = csitranslation.New()

// Controller looks at claims that ask for more than they have. Create one with New.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	claims corelisters.PersistentVolumeClaimLister
	events record.EventRecorder
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	claims := f.Core().V1().PersistentVolumeClaims()
	c := &Controller{client: client, claims: claims.Lister()}
	c.loop = controller.NewLoop("volume_expand", c.sync)
	return c, c.loop.Watch(claims.Informer(), c.changed)
}

// Run looks at claims until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "volume_expand")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

// changed wakes a claim that asks for more than it did.
func (c *Controller) changed(old, obj any) {
	was, _ := old.(*v1.PersistentVolumeClaim)
	is, _ := obj.(*v1.PersistentVolumeClaim)
	if is == nil || !grows(is) {
		return
	}
	knew := was != nil && was.UID == is.UID && grows(was)
	if !knew || is.Spec.Resources.Requests.Storage().Cmp(*was.Spec.Resources.Requests.Storage()) > 0 {
		c.loop.AddObject(old, obj)
	}
}

// grows reports whether a claim asks for more than it has.
func grows(claim *v1.PersistentVolumeClaim) bool {
	wants, has := claim.Spec.Resources.Requests.Storage(), claim.Status.Capacity.Storage()
	return claim.Status.Phase == v1.ClaimBound && wants.Cmp(*has) > 0
}

func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && !grows(claim) {
		return nil
	}
	if err != nil {
		return err
	}
	pv, err := c.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the claim is lost
	}
	if err != nil {
		return fmt.Errorf("look at the volume of claim %s: %w", key, err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID || ref.Namespace != claim.Namespace {
		return nil // the same
	}
	if translator.IsPVMigratable(pv) {
		return c.handOver(ctx, claim, pv)
	}
	kind := v1.EventTypeNormal
	if pv.Spec.CSI == nil && !metav1.HasAnnotation(pv.ObjectMeta, volume.AnnDynamicallyProvisioned) {
		kind = v1.EventTypeWarning // of nobody is it known that he could
	}
	c.events.Event(claim, kind, "ExternalExpanding", "waiting for an external controller to expand this PVC")
	return nil
}

// handOver names the driver that has taken over from the volume's kind as the one to resize it.
func (c *Controller) handOver(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	kind, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	driver, err2 := translator.GetCSINameFromInTreeName(kind)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	c.events.Eventf(claim, v1.EventTypeNormal, "ExternalExpanding",
		"CSI migration enabled for %s; waiting for external resizer to expand the pvc", kind)
	if claim.Annotations[resizer] == driver {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "annotations": map[string]string{resizer: driver},
	}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).
		Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	c.events.Eventf(claim, v1.EventTypeWarning, "ExternalExpanding",
		"error setting resizer annotation to pvc %s/%s, with error %v", claim.Namespace, claim.Name, err)
	return fmt.Errorf("name the resizer of claim %s/%s: %w", claim.Namespace, claim.Name, err)
}
