package volume

import (
	"context"
	"errors"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"wherry.dev/internal/kubelet/csi"
)

// ErrNoUsage means that a volume's driver does not say how full it is.
var ErrNoUsage = errors.New("the volume has no driver that tells its usage")

// DriverUsage asks the driver of the CSI volume at a path, which Places has, how full the volume is.
func (m *Mounter) DriverUsage(ctx context.Context, path string) ([]*csipb.VolumeUsage, error) {
	if m.CSI == nil || filepath.Base(filepath.Dir(filepath.Dir(path))) != csiFolder {
		return nil, ErrNoUsage
	}
	data, err := readVolData(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var usage []*csipb.VolumeUsage
	err = m.CSI.Drivers.Call(ctx, data[keyDriver], func(ctx context.Context, c csipb.NodeClient) error {
		can, err := csi.Can(ctx, c)
		if err != nil {
			return err
		}
		if !can[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
			return ErrNoUsage
		}
		resp, err := c.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: data[keyHandle], VolumePath: path})
		usage = resp.GetUsage()
		return err
	})
	return usage, err
}
