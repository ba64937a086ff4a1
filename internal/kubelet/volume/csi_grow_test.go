package volume

import (
	"context"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/fakecsi"
)

// TestAClaimSaysHowItsVolumeGrows: that its node is at it; that it failed, if that is certain; and that it never will,
// whereupon the driver is not asked again until whoever enlarges volumes says so.
func TestAClaimSaysHowItsVolumeGrows(t *testing.T) {
	size := func(s string) v1.ResourceList { return v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)} }
	for name, tc := range map[string]struct {
		code   codes.Code
		other  bool // the claim wants another size after the first failure
		calls  int  // of three attempts
		status v1.ClaimResourceStatus
		told   bool // of the failure, by a condition
	}{
		"done":                  {calls: 1},
		"perhaps":               {code: codes.Unavailable, calls: 3, status: v1.PersistentVolumeClaimNodeResizeInProgress},
		"not now":               {code: codes.Internal, calls: 3, status: v1.PersistentVolumeClaimNodeResizeInProgress, told: true},
		"never":                 {code: codes.OutOfRange, calls: 1, status: v1.PersistentVolumeClaimNodeResizeInfeasible, told: true},
		"no more":               {code: codes.Internal, other: true, calls: 2, status: v1.PersistentVolumeClaimNodeResizeInfeasible, told: true},
		"whatever it says then": {code: codes.Unknown, other: true, calls: 2, status: v1.PersistentVolumeClaimNodeResizeInfeasible, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			d, c, m := newCSI(t, unattached())
			claim := c.claim["c"]
			claim.Status.Capacity = size("1Gi")
			set(t, m, claimPod("u1"))
			claim.Spec.Resources.Requests, c.volumes["pv"].Spec.Capacity = size("2Gi"), size("2Gi")
			claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
			claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}
			claims := m.CSI.Client.CoreV1().PersistentVolumeClaims("ns")
			if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			calls := 0
			d.Before("NodeExpandVolume", func(ctx context.Context) error {
				calls++
				now, err := claims.Get(ctx, "c", metav1.GetOptions{})
				if err != nil || nodeResize(now) != v1.PersistentVolumeClaimNodeResizeInProgress {
					t.Errorf("while it grows, its claim says %v, %v", now.Status, err)
				}
				if tc.code != codes.OK {
					return status.Error(tc.code, "no")
				}
				return nil
			})
			for i := range 3 {
				if i == 1 && tc.other {
					c.claim["c"].Spec.Resources.Requests = size("3Gi")
				}
				before := calls
				if _, err := m.Renew(t.Context(), claimPod("u1"), "v"); (err != nil) != (tc.code != codes.OK && calls > before) {
					t.Errorf("attempt %d: %v", i, err)
				}
				now, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				now.Spec.Resources.Requests = c.claim["c"].Spec.Resources.Requests
				c.claim["c"] = now
			}
			now := c.claim["c"]
			if told := slices.ContainsFunc(now.Status.Conditions, isResizeError); calls != tc.calls || nodeResize(now) != tc.status || told != tc.told {
				t.Errorf("%d calls, told %v: %+v", calls, told, now.Status)
			}
			if tc.code == codes.OK && (len(now.Status.Conditions) > 0 || now.Status.Capacity.Storage().Value() != 2<<30) {
				t.Errorf("%+v", now.Status)
			}
			clear(t, m, "u1")
		})
	}
}

func TestAVolumeGrowsWithItsClaim(t *testing.T) {
	d, c, m := newCSI(t, unattached())
	claim := c.claim["c"]
	size := func(s string) v1.ResourceList { return v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)} }
	claim.Spec.Resources.Requests, claim.Status.Capacity, c.volumes["pv"].Spec.Capacity = size("1Gi"), size("1Gi"), size("1Gi")
	set(t, m, claimPod("u1"))
	if _, err := m.CSI.Client.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var told []string
	m.Tell = func(_ *v1.Pod, reason, message string) { told = append(told, reason+": "+message) }
	renew := func() {
		t.Helper()
		if _, err := m.Renew(t.Context(), claimPod("u1"), "v"); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	claim.Spec.Resources.Requests = size("2Gi")
	renew() // the volume is not larger yet
	claim.DeletionTimestamp = new(metav1.Now())
	renew() // which is no concern of a pod that has the volume
	claim.DeletionTimestamp = nil
	called(t, d, "Stage", "Publish")
	c.volumes["pv"].Spec.Capacity = size("2Gi")
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending}}
	d.Before("NodeExpandVolume", fakecsi.Refuse(codes.Internal, "no"))
	if _, err := m.Renew(t.Context(), claimPod("u1"), "v"); err == nil || !strings.HasPrefix(err.Error(), `NodeExpandVolume failed for volume "pv" : `) {
		t.Errorf("got %v", err)
	}
	d.Before("NodeExpandVolume", nil)
	renew()
	called(t, d, "Stage", "Publish", "Expand", "Expand")
	if got := fakecsi.Last[*csipb.NodeExpandVolumeRequest](d); got.CapacityRange.RequiredBytes != 2<<30 || got.StagingTargetPath == "" {
		t.Errorf("grown by %v", got)
	}
	got, err := m.CSI.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil || got.Status.Capacity.Storage().Value() != 2<<30 || len(got.Status.Conditions) > 0 {
		t.Errorf("the claim has %v, %v", got.Status, err)
	}
	if want := `FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv" n`; !slices.Equal(told, []string{want}) {
		t.Errorf("told: %q", told)
	}
	// The mock driver of upstream's tests mounts nothing.
	if err := unix.Unmount(fakecsi.Last[*csipb.NodePublishVolumeRequest](d).TargetPath, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	claim.ResourceVersion, claim.Status.Capacity, c.volumes["pv"].Spec.Capacity = "", size("2Gi"), size("3Gi")
	claim.Spec.Resources.Requests = size("3Gi")
	renew()
	called(t, d, "Stage", "Publish", "Expand", "Expand", "Expand")
	clear(t, m, "u1")
}
