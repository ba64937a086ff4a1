package volume

import (
	"context"
	"encoding/json"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/csi"
)

// grows reports whether a claim waits for its volume to grow, which is on its node's part.
func grows(c *v1.PersistentVolumeClaim) bool {
	want, have := c.Spec.Resources.Requests[v1.ResourceStorage], c.Status.Capacity[v1.ResourceStorage]
	return have.Sign() > 0 && have.Cmp(want) < 0
}

// grow has the driver enlarge what is on the volume, when the volume itself was enlarged.
func (p *csiJob) grow(ctx context.Context) error {
	if p.pv == nil || p.readOnly || !grows(p.claim) {
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
	var ref *v1.SecretReference
	if pv.Spec.CSI != nil {
		ref = pv.Spec.CSI.NodeExpandSecretRef
	}
	secrets, err := p.secrets(ctx, ref)
	if err != nil {
		return err
	}
	err = p.call(ctx, "Expander.NodeExpand failed to get CSI client", func(ctx context.Context, c csipb.NodeClient) error {
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
	if err != nil {
		return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
	}
	if err := p.markGrown(ctx, pv); err != nil {
		return err
	}
	if p.m.Tell != nil {
		p.m.Tell(p.pod, "FileSystemResizeSuccessful", fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", p.name, p.m.NodeName))
	}
	return nil
}

// markGrown writes into the claim how large its volume is now, and that nothing of that is left to do.
func (p *csiJob) markGrown(ctx context.Context, pv *v1.PersistentVolume) error {
	var rest []v1.PersistentVolumeClaimCondition
	for _, c := range p.claim.Status.Conditions {
		switch c.Type {
		case v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing,
			v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError:
		default:
			rest = append(rest, c)
		}
	}
	doc, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": p.claim.ResourceVersion},
		"status": map[string]any{
			"capacity":                  map[string]any{"storage": pv.Spec.Capacity[v1.ResourceStorage]},
			"conditions":                rest,
			"allocatedResourceStatuses": map[string]any{"storage": nil},
		},
	})
	if err != nil {
		return err
	}
	_, err = p.c.Client.CoreV1().PersistentVolumeClaims(p.claim.Namespace).Patch(ctx, p.claim.Name, types.MergePatchType, doc, metav1.PatchOptions{}, "status")
	return err
}
