package volumes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// promise is what Reserve has decided about a pod's open claims, as it is in the API when it is kept. What was there
// before, because of another pod or another attempt, is waited for and not written.
type promise struct {
	volumes []promised[*v1.PersistentVolume]
	claims  []promised[*v1.PersistentVolumeClaim]
}

type promised[T any] struct {
	claim *v1.PersistentVolumeClaim
	obj   T
	write bool
}

// Reserve promises the volumes to the pod.
func (b *Binding) Reserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	s := stateOf(state)
	if s == nil || len(s.needs.open) == 0 {
		return nil
	}
	p := s.plan(node)
	if p == nil {
		return fwk.AsStatus(fmt.Errorf("no pod volume found for node %q", node))
	}
	s.promise = &promise{}
	if err := b.reserve(s.promise, p, node); err != nil {
		b.release(s.promise)
		return fwk.AsStatus(err)
	}
	return nil
}

func (b *Binding) reserve(out *promise, p *plan, node string) error {
	for _, x := range p.bind {
		pv, changed, err := volume.GetBindVolumeToClaim(x.pv, x.claim)
		if err != nil {
			return err
		}
		if changed {
			if err := b.volumes.assume(pv); err != nil {
				return err
			}
		}
		out.volumes = append(out.volumes, promised[*v1.PersistentVolume]{x.claim, pv, changed})
	}
	for _, x := range p.provision {
		claim, changed := x.claim, x.claim.Annotations[volume.AnnSelectedNode] != node
		if changed {
			claim = claim.DeepCopy()
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, node)
			if err := b.claims.assume(claim); err != nil {
				return err
			}
		}
		out.claims = append(out.claims, promised[*v1.PersistentVolumeClaim]{x.claim, claim, changed})
	}
	return nil
}

// Unreserve takes back what has not been written.
func (b *Binding) Unreserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if s := stateOf(state); s != nil && s.promise != nil {
		b.release(s.promise)
	}
}

// release takes back what has not been written. Others may wait for it to be.
func (b *Binding) release(p *promise) {
	for _, x := range p.volumes {
		if x.write {
			b.volumes.release(x.obj)
			b.bells.Ring(bellOfClaim(keyOf(x.claim)))
		}
	}
	for _, x := range p.claims {
		if x.write {
			b.claims.release(x.obj)
			b.bells.Ring(bellOfClaim(keyOf(x.claim)))
		}
	}
}

// PreBindPreFlight skips pods whose claims all have their volumes.
func (*Binding) PreBindPreFlight(_ context.Context, state fwk.CycleState, _ *v1.Pod,
	_ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	if s := stateOf(state); s == nil || s.promise == nil {
		return result, fwk.NewStatus(fwk.Skip)
	}
	return result, nil
}

// PreBind writes what was promised, and waits until the claims have their volumes. What it has written stays if that
// fails: the pod's next attempt, or whoever binds volumes, goes on from there.
func (b *Binding) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	s := stateOf(state)
	if s == nil || s.promise == nil {
		return nil
	}
	if err := b.write(ctx, s.promise); err != nil {
		return fwk.AsStatus(err)
	}
	klog.FromContext(ctx).V(2).Info("Waiting for the pod's claims to be bound", "node", node)
	ctx, stop := context.WithTimeout(ctx, b.timeout)
	defer stop()
	if err := b.await(ctx, pod, s.promise); err != nil {
		return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	return nil
}

// write tells whoever binds and makes volumes.
func (b *Binding) write(ctx context.Context, p *promise) error {
	for _, x := range p.volumes {
		if !x.write {
			continue
		}
		answer, err := b.client.CoreV1().PersistentVolumes().Update(ctx, x.obj, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		b.volumes.written(x.obj, answer)
	}
	for _, x := range p.claims {
		if !x.write {
			continue
		}
		answer, err := b.client.CoreV1().PersistentVolumeClaims(x.obj.Namespace).Update(ctx, x.obj, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		b.claims.written(x.obj, answer)
	}
	return nil
}

// await looks at the claims whenever something has happened to them, until all are bound or one cannot be.
func (b *Binding) await(ctx context.Context, pod *v1.Pod, p *promise) error {
	bells := []string{bellOfNode(pod.Spec.NodeName)}
	for _, x := range p.volumes {
		bells = append(bells, bellOfClaim(keyOf(x.claim)))
	}
	for _, x := range p.claims {
		bells = append(bells, bellOfClaim(keyOf(x.claim)))
	}
	rung, stop := b.bells.Listen(bells...)
	defer stop()
	for {
		done, err := b.kept(pod.Spec.NodeName, p)
		if done || err != nil {
			return err
		}
		select {
		case <-rung:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// kept reports whether all claims are bound as promised. An error says that they will not be.
func (b *Binding) kept(nodeName string, p *promise) (bool, error) {
	node, err := b.nodes.Get(nodeName)
	if err != nil {
		return false, fmt.Errorf("failed to get node %q: %w", nodeName, err)
	}
	csiNode := b.csiNode(nodeName)
	all := true
	for _, x := range p.volumes {
		done, err := b.bound(x, node, csiNode)
		if err != nil {
			return false, err
		}
		all = all && done
	}
	for _, x := range p.claims {
		done, err := b.provisioned(x, node, csiNode)
		if err != nil {
			return false, err
		}
		all = all && done
	}
	return all, nil
}

// bound reports whether a volume that existed is the claim's.
func (b *Binding) bound(x promised[*v1.PersistentVolume], node *v1.Node, csiNode *storagev1.CSINode) (bool, error) {
	pv, err := b.volumes.get(x.obj.Name)
	if err != nil {
		return false, fmt.Errorf("failed to check binding: %w", err)
	}
	claim, err := b.sameClaim(x.claim)
	if err != nil {
		return false, fmt.Errorf("failed to check binding: %w", err)
	}
	if err := reaches(pv, node, csiNode); err != nil {
		return false, err
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return false, fmt.Errorf("ClaimRef got reset for pv %q", pv.Name)
	}
	if name := claim.Spec.VolumeName; name != "" && name != pv.Name {
		return false, fmt.Errorf("PVC %q got pv %q instead of %q", claim.Name, name, pv.Name)
	}
	return bound(claim), nil
}

// provisioned reports whether a volume was made for the claim. If that fails, the provisioner takes the claim's node
// away.
func (b *Binding) provisioned(x promised[*v1.PersistentVolumeClaim], node *v1.Node,
	csiNode *storagev1.CSINode) (bool, error) {
	claim, err := b.sameClaim(x.claim)
	if err != nil {
		return false, fmt.Errorf("failed to check provisioning pvc: %w", err)
	}
	if claim.Annotations == nil {
		return false, fmt.Errorf("selectedNode annotation reset for PVC %q", claim.Name)
	}
	if claim.Annotations[volume.AnnSelectedNode] != node.Name {
		return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
	}
	if claim.Spec.VolumeName == "" {
		return false, nil
	}
	pv, err := b.volumes.get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return false, nil // the news of the claim was faster
	}
	if err != nil {
		return false, fmt.Errorf("failed to get pv %q from cache: %w", claim.Spec.VolumeName, err)
	}
	if err := reaches(pv, node, csiNode); err != nil {
		return false, err
	}
	return bound(claim), nil
}

// sameClaim returns a claim as it is now. A new one with the same name is another one.
func (b *Binding) sameClaim(was *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	now, err := b.claims.get(keyOf(was))
	if err == nil && now.UID != was.UID {
		return nil, apierrors.NewNotFound(b.claims.resource, was.Name)
	}
	return now, err
}

// reaches returns an error if the volume turns out to be out of the node's reach.
func reaches(pv *v1.PersistentVolume, node *v1.Node, csiNode *storagev1.CSINode) error {
	there, err := onNode(pv, csiNode)
	if err != nil {
		return err
	}
	if err := volume.CheckNodeAffinity(there, node.Labels); err != nil {
		return fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node.Name, err)
	}
	return nil
}
