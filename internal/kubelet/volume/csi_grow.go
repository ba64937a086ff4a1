package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/csi"
)

// grows reports whether a claim waits for its volume to grow, which is on its node's part.
func grows(c *v1.PersistentVolumeClaim) bool {
	want, have := c.Spec.Resources.Requests[v1.ResourceStorage], c.Status.Capacity[v1.ResourceStorage]
	return have.Sign() > 0 && have.Cmp(want) < 0
}

// grow has the driver enlarge what is on the volume, when the volume itself was enlarged. The claim says how far that has
// come (KEP-1790): one that can never be done is left to whoever enlarges volumes, until that has changed the claim.
func (p *csiJob) grow(ctx context.Context) error {
	if p.pv == nil || p.readOnly || !grows(p.claim) || nodeResize(p.claim) == v1.PersistentVolumeClaimNodeResizeInfeasible {
		return nil
	}
	pv, err := p.m.Volume(ctx, p.pv.Name)
	if err != nil {
		return err
	}
	size, have := pv.Spec.Capacity[v1.ResourceStorage], p.claim.Status.Capacity[v1.ResourceStorage]
	if size.Cmp(have) <= 0 {
		return nil // the volume is yet to be enlarged; then the claim changes
	}
	if nodeResize(p.claim) == v1.PersistentVolumeClaimNodeResizePending {
		written, err := p.writeClaim(ctx, inProgress)
		if err != nil || !written {
			return err
		}
	}
	if err := p.expand(ctx, pv, size); err != nil {
		err = fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
		return errors.Join(err, p.markFailed(ctx, size, err))
	}
	written, err := p.writeClaim(ctx, func(s *v1.PersistentVolumeClaimStatus) { grown(s, size) })
	if err == nil && written && p.m.Tell != nil {
		p.m.Tell(p.pod, "FileSystemResizeSuccessful", fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", p.name, p.m.NodeName))
	}
	return err
}

// expand calls the driver, if it enlarges volumes on nodes. Errors of the call are those of gRPC.
func (p *csiJob) expand(ctx context.Context, pv *v1.PersistentVolume, size resource.Quantity) error {
	var ref *v1.SecretReference
	if pv.Spec.CSI != nil {
		ref = pv.Spec.CSI.NodeExpandSecretRef
	}
	secrets, err := p.secrets(ctx, ref)
	if err != nil {
		return err
	}
	return p.call(ctx, "Expander.NodeExpand failed to get CSI client", func(ctx context.Context, c csipb.NodeClient) error {
		can, err := csi.Can(ctx, c)
		if err != nil || !can[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME] {
			return err
		}
		staging := p.files.staging
		if !can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			staging = ""
		}
		_, err = c.NodeExpandVolume(ctx, &csipb.NodeExpandVolumeRequest{
			VolumeId: p.handle, VolumePath: p.target, StagingTargetPath: staging, Secrets: secrets, VolumeCapability: p.capability(can),
			CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
		})
		return err
	})
}

// markFailed writes into the claim that its volume did not grow, if that is certain. It never will if the driver says so,
// or if it failed before and the claim wants another size by now.
func (p *csiJob) markFailed(ctx context.Context, size resource.Quantity, failed error) error {
	if mayGoOn(failed) || nodeResize(p.claim) == "" { // "": whoever enlarged the volume does not know of failures
		return nil
	}
	before := slices.ContainsFunc(p.claim.Status.Conditions, isResizeError)
	never := false
	switch status.Code(failed) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		never = true
	default:
		want := p.claim.Spec.Resources.Requests[v1.ResourceStorage]
		never = before && want.Cmp(size) != 0
	}
	if before && !never {
		return nil
	}
	_, err := p.writeClaim(ctx, func(s *v1.PersistentVolumeClaimStatus) {
		if never {
			s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
		}
		if !before {
			s.Conditions = append(s.Conditions, v1.PersistentVolumeClaimCondition{
				Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
				Message: fmt.Sprintf("failed to expand pvc with %v", failed),
			})
		}
	})
	return err
}

func isResizeError(c v1.PersistentVolumeClaimCondition) bool {
	return c.Type == v1.PersistentVolumeClaimNodeResizeError && c.Status == v1.ConditionTrue
}

// nodeResize is how far the growth of a claim's volume has come on its node; "" if whoever enlarged it does not say.
func nodeResize(c *v1.PersistentVolumeClaim) v1.ClaimResourceStatus {
	return c.Status.AllocatedResourceStatuses[v1.ResourceStorage]
}

func inProgress(s *v1.PersistentVolumeClaimStatus) {
	s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
}

// grown says how large the volume is now, and that nothing of that is left to do.
func grown(s *v1.PersistentVolumeClaimStatus, size resource.Quantity) {
	s.Capacity[v1.ResourceStorage] = size
	delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing,
			v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
}

// writeClaim changes the status of the claim. It reports false if the claim has changed meanwhile: then that change brings
// the volume here again.
func (p *csiJob) writeClaim(ctx context.Context, change func(*v1.PersistentVolumeClaimStatus)) (written bool, err error) {
	next := p.claim.DeepCopy()
	change(&next.Status)
	statuses := map[string]any{"storage": nil}
	if s := nodeResize(next); s != "" {
		statuses["storage"] = s
	}
	doc, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": p.claim.ResourceVersion},
		"status": map[string]any{
			"capacity": next.Status.Capacity, "conditions": next.Status.Conditions, "allocatedResourceStatuses": statuses,
		},
	})
	if err != nil {
		return false, err
	}
	next, err = p.c.Client.CoreV1().PersistentVolumeClaims(p.claim.Namespace).Patch(ctx, p.claim.Name, types.MergePatchType, doc, metav1.PatchOptions{}, "status")
	if apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.claim = next
	return true, nil
}
