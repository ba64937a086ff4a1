package volume

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/test/fakecsi"
)

// tended waits until no volume of a driver is on the node.
func tended(t *testing.T, m *Mounter) {
	t.Helper()
	defer tends(t, m)()
	awaitUnstaged(t, m)
}

func awaitUnstaged(t *testing.T, m *Mounter) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left, err := stagedOn(m.Dirs)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still on the node: %v", left)
		}
	}
}

// A pod whose driver failed to take its volume from the node used to stay until it did, which a driver may never do. It goes, and
// the node has the volume until the driver has done its part; a pod that comes meanwhile has it staged again (upstream's CSI
// Mock, "NodeUnstage error cases").
func TestAPodDoesNotWaitForTheNodeToBeRidOfItsVolume(t *testing.T) {
	for name, c := range map[string]struct {
		pod  func(types.UID) *v1.Pod
		code codes.Code
	}{
		"with files": {claimPod, codes.InvalidArgument}, "with files, slowly": {claimPod, codes.DeadlineExceeded}, "a device": {devicePod, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			d, claims, m := newCSI(t, unattached())
			if d.Device = "/dev/null"; name == "a device" {
				claims.volumes["pv"].Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			}
			set(t, m, c.pod("u1"))
			d.Before("NodeUnstageVolume", fakecsi.Refuse(c.code, "not now"))
			clear(t, m, "u1")
			called(t, d, "Stage", "Publish", "Unpublish", "Unstage")
			if left, err := stagedOn(m.Dirs); err != nil || len(left) != 1 {
				t.Errorf("the node has %v, %v", left, err)
			}
			set(t, m, c.pod("u2"))
			called(t, d, "Stage", "Publish", "Unpublish", "Unstage", "Stage", "Publish")
			stop := tends(t, m)
			time.Sleep(50 * time.Millisecond) // nothing is to be done: the second pod has it
			called(t, d, "Stage", "Publish", "Unpublish", "Unstage", "Stage", "Publish")
			clear(t, m, "u2")
			d.Before("NodeUnstageVolume", nil)
			awaitUnstaged(t, m)
			stop()
			nothingLeft(t, m)
		})
	}
}

// What a driver has refused to stage it need not take back, as upstream has it; what it may have staged all the same, it must.
func TestWhatWasNeverStagedIsNotTakenBack(t *testing.T) {
	for code, asked := range map[codes.Code]bool{codes.InvalidArgument: false, codes.Internal: false, codes.DeadlineExceeded: true, codes.Aborted: true} {
		t.Run(code.String(), func(t *testing.T) {
			d, _, m := newCSI(t, unattached())
			d.Before("NodeStageVolume", fakecsi.Refuse(code, "no"))
			if _, err := m.Mount(t.Context(), claimPod("u1"), "v"); status.Code(err) != code {
				t.Errorf("got %v", err)
			}
			clear(t, m, "u1")
			want := []string{"Stage"}
			if asked {
				want = append(want, "Unstage")
			}
			called(t, d, want...)
			nothingLeft(t, m)
		})
	}
}

// What is still mounted for a volume that the node failed to get rid of must be taken back, whatever the driver says of the next pod's.
func TestWhatIsStillMountedIsTakenBack(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	set(t, m, claimPod("u1"))
	d.Before("NodeUnstageVolume", fakecsi.Refuse(codes.Internal, "busy"))
	clear(t, m, "u1")
	d.Before("NodeUnstageVolume", nil)
	const refused = `MountVolume.MountDevice failed for volume "pv" : rpc error: code = FailedPrecondition desc = it is being unstaged`
	d.Before("NodeStageVolume", fakecsi.Refuse(codes.FailedPrecondition, "it is being unstaged"))
	if _, err := m.Mount(t.Context(), claimPod("u2"), "v"); err == nil || err.Error() != refused {
		t.Errorf("got %v", err)
	}
	clear(t, m, "u2")
	called(t, d, "Stage", "Publish", "Unpublish", "Unstage", "Stage", "Unstage")
	nothingLeft(t, m)
}

// A driver that hangs, or that has gone, holds up no pod either; the next kubelet sees to what is left.
func TestWhatADriverLeavesIsTakenFromTheNodeLater(t *testing.T) {
	for name, away := range map[string]bool{"it hangs": false, "it is gone": true} {
		t.Run(name, func(t *testing.T) {
			d, _, m := newCSI(t, unattached())
			set(t, m, claimPod("u1"))
			d.Before("NodeUnstageVolume", fakecsi.Hang)
			if away {
				d.Before("NodeUnpublishVolume", func(ctx context.Context) error { // it goes before the next call
					return m.CSI.Drivers.Deregister(ctx, plugin(d.Socket()))
				})
			}
			clear(t, m, "u1")
			d.Before("NodeUnstageVolume", nil)
			m = restarted(t, m, d)
			tended(t, m)
			nothingLeft(t, m)
		})
	}
}

// A driver that comes is asked at once.
func TestADriverThatComesTakesBackWhatItLeft(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	set(t, m, claimPod("u1"))
	d.Before("NodeUnpublishVolume", func(ctx context.Context) error {
		return m.CSI.Drivers.Deregister(ctx, plugin(d.Socket()))
	})
	clear(t, m, "u1")
	defer tends(t, m)()
	time.Sleep(1200 * time.Millisecond) // the waits grow to seconds meanwhile
	if err := m.CSI.Drivers.Register(t.Context(), plugin(d.Socket())); err != nil {
		t.Fatal(err)
	}
	awaitUnstaged(t, m)
	nothingLeft(t, m)
}
