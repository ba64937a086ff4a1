package volume

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/test/fakecsi"
)

// A node that has no room for a volume gives the pod up, in its driver's words, if the driver follows its limits (KEP-4876).
func TestAPodIsRejectedWhereADriverCanAttachNoMore(t *testing.T) {
	exhausted := &storagev1.VolumeError{Message: "no slot is free", ErrorCode: new(int32(codes.ResourceExhausted))}
	for name, tc := range map[string]struct {
		period  *int64
		err     *storagev1.VolumeError
		rejects bool
	}{
		"no room":                       {new(int64(60)), exhausted, true},
		"no room, of no concern":        {nil, exhausted, false},
		"another error":                 {new(int64(60)), &storagev1.VolumeError{Message: "x", ErrorCode: new(int32(codes.Internal))}, false},
		"an error of an older attacher": {new(int64(60)), &storagev1.VolumeError{Message: "x"}, false},
		"not tried yet":                 {new(int64(60)), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, m := newCSI(t, &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: tc.period},
			})
			var told int64
			m.CSI.Drivers.Update = func(_ context.Context, driver string, info *csipb.NodeGetInfoResponse) error {
				if driver == driverName {
					told++
				}
				return nil
			}
			m.Attached.patience = 10 * time.Millisecond
			m.Attached.Report = func() {}
			var said []string
			m.Reject = func(pod *v1.Pod, reason, message string) { said = append(said, string(pod.UID), reason, message) }
			a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachments.Name(driverName, "handle/1", "n")}}
			a.Status.AttachError = tc.err
			if _, err := m.CSI.Client.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err := m.Mount(t.Context(), claimPod("u1"), "v")
			if err == nil || !strings.HasPrefix(err.Error(), "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[v]") {
				t.Errorf("got %v", err)
			}
			want, asked := []string(nil), int64(0)
			if tc.rejects {
				asked = 1
				want = []string{"u1", "VolumeAttachmentLimitExceeded", "Node has reached its volume attachment limit, rejecting pod. " +
					"unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: no slot is free"}
			}
			if !slices.Equal(said, want) || told != asked {
				t.Errorf("rejected %q, and the cluster was told %d times", said, told)
			}
			clear(t, m, "u1")
			nothingLeft(t, m)
		})
	}
}

func TestAVolumeIsAttachedFirst(t *testing.T) {
	d, _, m := newCSI(t, nil) // a driver without an object attaches
	reports := make(chan struct{}, 10)
	m.Attached.Report = func() { reports <- struct{}{} }
	m.Attached.Written = func(context.Context) (string, error) { m.Attached.Report(); return "10", nil }
	id := attachments.Name(driverName, "handle/1", "n")
	_, err := m.CSI.Client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/sdx"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := m.Mount(t.Context(), claimPod("u1"), "v")
		done <- err
	}()
	<-reports
	used, err := VolumesInUse(m.Dirs)
	name := v1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^handle/1")
	if err != nil || !slices.Equal(used, []v1.UniqueVolumeName{name}) {
		t.Fatalf("the node uses %v, %v", used, err)
	}
	see := func(version string, st v1.NodeStatus) {
		m.Attached.NodeSeen(&v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Status: st})
	}
	attached := []v1.AttachedVolume{{Name: name}}
	// From before another pod let go of it, which somebody may just see.
	see("9", v1.NodeStatus{VolumesInUse: used, VolumesAttached: attached})
	see("10", v1.NodeStatus{VolumesAttached: attached})
	see("11", v1.NodeStatus{VolumesInUse: used})
	called(t, d)
	see("12", v1.NodeStatus{VolumesInUse: used, VolumesAttached: attached})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := fakecsi.Last[*csipb.NodeStageVolumeRequest](d); got.PublishContext["device"] != "/dev/sdx" {
		t.Errorf("staged by %v", got)
	}
	clear(t, m, "u1")
	if used, err := VolumesInUse(m.Dirs); err != nil || len(used) > 0 {
		t.Errorf("at the end the node uses %v, %v", used, err)
	}
	<-reports
}
