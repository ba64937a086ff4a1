package expand

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/storage/volume"

	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

func size(gib int64) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(gib<<30, resource.BinarySI)}
}

// newClaim has one gibibyte, and asks for more or not.
func newClaim(asks int64) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv", Resources: v1.VolumeResourceRequirements{Requests: size(asks)}},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size(1)},
	}
}

func newVolume(source v1.PersistentVolumeSource, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{
		Capacity: size(1), PersistentVolumeSource: source, ClaimRef: &v1.ObjectReference{Namespace: "ns", Name: "c", UID: "c"},
	}}
	for _, f := range change {
		f(pv)
	}
	return pv
}

var (
	csi   = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}}
	ebs   = v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	local = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/d"}}
)

func TestWhoIsWaitedFor(t *testing.T) {
	made := func(pv *v1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, volume.AnnDynamicallyProvisioned, "local.wherry.dev")
	}
	other := func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "another" }
	const waiting = "ExternalExpanding waiting for an external controller to expand this PVC"
	for name, test := range map[string]struct {
		claim         *v1.PersistentVolumeClaim
		volume        *v1.PersistentVolume
		says, resizer string
	}{
		"a driver":                      {newClaim(2), newVolume(csi), "Normal " + waiting, ""},
		"a kind with a successor":       {newClaim(2), newVolume(ebs), "Normal ExternalExpanding CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc", "ebs.csi.aws.com"},
		"a provisioner":                 {newClaim(2), newVolume(local, made), "Normal " + waiting, ""},
		"nobody":                        {newClaim(2), newVolume(local), "Warning " + waiting, ""},
		"it has what it asks for":       {newClaim(1), newVolume(csi), "", ""},
		"the volume is another claim's": {newClaim(2), newVolume(csi, other), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(test.claim, test.volume)
				f := informers.NewSharedInformerFactory(client, 0)
				c, err := New(client, f)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				f.Start(ctx.Done())
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				time.Sleep(time.Minute)
				claims := client.CoreV1().PersistentVolumeClaims("ns")
				claim, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := claim.Annotations[resizer]; got != test.resizer {
					t.Errorf("resizer %q", got)
				}
				claim.Labels = map[string]string{"a": "b"} // which is no reason to say it again
				if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var says []string
				for _, e := range list.Items {
					for range e.Count {
						says = append(says, e.Type+" "+e.Reason+" "+e.Message)
					}
				}
				if got := strings.Join(says, "; "); got != test.says {
					t.Errorf("said %q, want %q", got, test.says)
				}
				cancel()
				f.Shutdown()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
