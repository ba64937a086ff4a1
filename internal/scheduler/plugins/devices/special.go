package devices

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
)

// The devices that stand for extended resources are those of a claim that the scheduler makes for the pod (upstream
// calls it the special one):
//
//	           Reserve            PreBind                       PreBind                  PreBind
//	(nothing) ────────▶ promised ────────▶ made, with nothing ────────▶ it has devices, ────────▶ named in the
//	                                       (and the finalizer)          for the pod only          pod's status
//
// Wherever that ends, the claim is deleted: by Unreserve or, if this scheduler dies, by the next one's PostFilter, when
// the pod is tried. If the pod is gone, so is its claim, by its owner reference; if it is over, the controller of claims
// deletes it.

// inMemory is what the claim is called until it exists. No claim can have that name.
const inMemory = "<extended-resources>"

// Stale is why a pod waits for which a former attempt has made a claim: whether its devices can still be used is not
// asked, it makes way for another one.
const Stale = "cannot schedule extended resource claim"

// special returns the claim as it is to be made. Its UID is only ours.
func special(pod *v1.Pod, n *need) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: inMemory, UID: "extended-resources-of-" + pod.UID,
			GenerateName: pod.Name + "-extended-resources-",
			Annotations:  map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			Finalizers:   []string{resourcev1.Finalizer},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)},
			},
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: n.requests}},
	}
}

func newSpecial(pod *v1.Pod, n *need) *podClaim {
	claim := special(pod, n)
	return &podClaim{
		ResourceClaim: claim, key: claim.UID, mappings: n.mappings,
		user: resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID},
	}
}

// made reports whether the claim exists, as far as this attempt knows.
func (c *podClaim) made() bool { return c.Name != inMemory }

// staleOf returns the claims that former attempts have left behind. own are those that the pod names. One that anybody
// else uses only looks as if it was made for the pod; its devices must not be given away.
func (d *Devices) staleOf(pod *v1.Pod, own []*resourcev1.ResourceClaim) []*podClaim {
	var out []*podClaim
	for _, claim := range d.madeFor(pod) {
		going := claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, resourcev1.Finalizer)
		named := slices.ContainsFunc(own, func(c *resourcev1.ResourceClaim) bool { return c.UID == claim.UID })
		if !going && !named && idle(claim, sets.New(pod.UID)) {
			out = append(out, &podClaim{ResourceClaim: claim, key: claim.UID})
		}
	}
	return out
}

// create makes the claim. If the answer is lost, it is found when the pod is tried again.
func (d *Devices) create(ctx context.Context, c *podClaim) error {
	claim := c.DeepCopy()
	claim.Name, claim.UID = "", ""
	answer, err := d.api(claim).Create(ctx, claim, metav1.CreateOptions{})
	countCreation(err)
	if err != nil {
		return fmt.Errorf("create claim for extended resources %s: %w", klog.KObj(c), err)
	}
	c.ResourceClaim = answer
	return nil
}

// remove deletes a claim that was made for the pod, with its finalizer, unless anybody else uses it now.
func (d *Devices) remove(ctx context.Context, c *podClaim, pod *v1.Pod) error {
	_, err := d.update(ctx, c, func(ctx context.Context, latest *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		if !idle(latest, sets.New(pod.UID)) {
			return nil, fmt.Errorf("claim %s is used by others", klog.KObj(latest))
		}
		if i := slices.Index(latest.Finalizers, resourcev1.Finalizer); i >= 0 {
			latest.Finalizers = slices.Delete(latest.Finalizers, i, i+1)
			answer, err := d.api(latest).Update(ctx, latest, metav1.UpdateOptions{})
			if err != nil {
				return nil, fmt.Errorf("remove finalizer from claim %s: %w", klog.KObj(latest), err)
			}
			latest = answer
		}
		// Somebody may have begun to use it just now.
		same := &metav1.Preconditions{UID: &latest.UID, ResourceVersion: &latest.ResourceVersion}
		return latest, d.api(latest).Delete(ctx, latest.Name, metav1.DeleteOptions{Preconditions: same})
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete claim %s: %w", klog.KObj(c), err)
	}
	return nil
}

// tell writes into the pod's status which claim its extended resources are, for the kubelet. If they are the node's
// own, nothing of a former attempt must be left there.
func (d *Devices) tell(ctx context.Context, s *state, pod *v1.Pod) error {
	c := s.special()
	if c == nil && pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	if c == nil {
		return d.writeStatus(ctx, pod, nil)
	}
	c.told = true
	return d.writeStatus(ctx, pod, &v1.PodExtendedResourceClaimStatus{RequestMappings: c.mappings, ResourceClaimName: c.Name})
}

func (d *Devices) writeStatus(ctx context.Context, pod *v1.Pod, status *v1.PodExtendedResourceClaimStatus) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"extendedResourceClaimStatus": status},
	})
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("update pod %s ExtendedResourceClaimStatus: %w", klog.KObj(pod), err)
	}
	return nil
}

// unmake deletes the claim that was made for a pod that is not bound, and takes back what was promised to it.
func (d *Devices) unmake(ctx context.Context, c *podClaim, pod *v1.Pod) {
	defer d.claims.withdraw(c.key, pod.UID)
	if !c.made() {
		return
	}
	log := klog.FromContext(ctx)
	if err := d.remove(ctx, c, pod); err != nil {
		log.Error(err, "A pod's claim for extended resources is left; it is deleted when the pod is tried again", "pod", klog.KObj(pod))
	}
	if !c.told {
		return
	}
	if err := d.writeStatus(ctx, pod, nil); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		log.Error(err, "A pod's status still names its claim", "pod", klog.KObj(pod), "claim", klog.KObj(c))
	}
}

// removeStale deletes what a former attempt has left behind. That they are gone has the pod tried again.
func (d *Devices) removeStale(ctx context.Context, stale []*podClaim, pod *v1.Pod) error {
	for _, c := range stale {
		if err := d.remove(ctx, c, pod); err != nil {
			return err
		}
	}
	return nil
}
