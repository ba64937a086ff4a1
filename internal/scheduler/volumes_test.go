package scheduler_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler"
)

// startVolumes starts a scheduler that waits for claims for a minute.
func startVolumes(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	client := fake.NewClientset(append(classes(), objs...)...)
	bindPods(client)
	versioned(client, func(ktesting.Action) error { return nil })
	return startClient(t, aMinute(), client, client)
}

func aMinute() scheduler.Config {
	cfg := scheduler.DefaultConfig()
	cfg.Profiles[0].Args = map[string]runtime.Object{"VolumeBinding": &configv1.VolumeBindingArgs{BindTimeoutSeconds: new(int64(60))}}
	return cfg
}

func (c *cluster) claim(name string) *v1.PersistentVolumeClaim {
	c.t.Helper()
	got, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return got
}

func (c *cluster) volume(name string) *v1.PersistentVolume {
	c.t.Helper()
	got, err := c.client.CoreV1().PersistentVolumes().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return got
}

// after lets time pass.
func (c *cluster) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// said returns what was written about the scheduling of pod p.
func (c *cluster) said(reason string) string {
	c.t.Helper()
	for _, cond := range c.get("p").Status.Conditions {
		if cond.Type == v1.PodScheduled && cond.Reason == reason {
			return cond.Message
		}
	}
	return ""
}

func TestAPodWaitsForItsVolumeAndGetsItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startVolumes(t, node("n1", "4"), node("n2", "4"), claim("c", existing, "1Gi"),
			localVolume("large", "9Gi", v1.LabelHostname, "n2"), localVolume("right", "2Gi", v1.LabelHostname, "n2"))
		defer c.stop()
		c.create(pod("p", "1", using("c")))
		c.wantNode("p", "")
		if ref := c.volume("right").Spec.ClaimRef; ref == nil || ref.UID != "c" {
			t.Fatalf("it is not kept for the claim: %+v", ref)
		}
		defer runBinder(t, binder{client: c.client}, time.Second)()
		c.after(2 * time.Second)
		c.wantNode("p", "n2")
		if got := c.claim("c").Spec.VolumeName; got != "right" {
			t.Errorf("it got %q", got)
		}
		if c.volume("large").Spec.ClaimRef != nil {
			t.Error("another volume is kept, too")
		}
	})
}

func TestNobodyBindsTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startVolumes(t, node("n1", "4"), claim("c", existing, "1Gi"), localVolume("v", "2Gi", v1.LabelHostname, "n1"))
		defer c.stop()
		c.create(pod("p", "1", using("c")))
		c.after(59 * time.Second)
		if got := c.said(v1.PodReasonSchedulerError); got != "" {
			t.Fatalf("too early: %s", got)
		}
		c.after(2 * time.Second)
		if got, want := c.said(v1.PodReasonSchedulerError), `running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded`; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
		defer runBinder(t, binder{client: c.client}, time.Second)()
		c.after(10 * time.Second)
		c.wantNode("p", "n1")
	})
}

func TestTheClaimIsDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startVolumes(t, node("n1", "4"), claim("c", existing, "1Gi"), localVolume("v", "2Gi", v1.LabelHostname, "n1"))
		defer c.stop()
		c.create(pod("p", "1", using("c")))
		claims := c.client.CoreV1().PersistentVolumeClaims("default")
		if err := claims.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := `running PreBind plugin "VolumeBinding": binding volumes: failed to check binding: persistentvolumeclaims "default/c" not found`
		if got := c.said(v1.PodReasonSchedulerError); got != want {
			t.Errorf("said %q, want %q", got, want)
		}
		c.after(5 * time.Second)
		if got := c.said(v1.PodReasonUnschedulable); !strings.HasPrefix(got,
			`0/1 nodes are available: persistentvolumeclaim "c" not found.`) {
			t.Errorf("said %q", got)
		}
		// A new claim of that name is another one: the volume was kept for the old one.
		defer runBinder(t, binder{client: c.client}, time.Second)()
		other := claim("c", existing, "1Gi")
		other.UID = "new"
		if _, err := claims.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.CoreV1().PersistentVolumes().Create(t.Context(),
			localVolume("w", "2Gi", v1.LabelHostname, "n1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(20 * time.Second)
		c.wantNode("p", "n1")
		if got := c.claim("c").Spec.VolumeName; got != "w" {
			t.Errorf("it got %q", got)
		}
	})
}

func TestThePodIsDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startVolumes(t, node("n1", "4"), claim("c", existing, "1Gi"), localVolume("v", "2Gi", v1.LabelHostname, "n1"))
		defer c.stop()
		c.create(pod("p", "4", using("c")))
		c.create(pod("q", "4"))
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(5 * time.Second)
		c.wantNode("q", "n1") // and not after the minute that the other would have waited
	})
}

func TestOneVolumeIsPromisedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startVolumes(t, node("n1", "4"), claim("c", existing, "1Gi"), claim("d", existing, "1Gi"),
			localVolume("v", "2Gi", v1.LabelHostname, "n1"))
		defer c.stop()
		c.create(pod("p", "1", using("c")))
		c.create(pod("q", "1", using("d")))
		const want = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
		c.wantMessage("q", want)
		defer runBinder(t, binder{client: c.client}, time.Second)()
		c.after(30 * time.Second)
		c.wantNode("p", "n1")
		c.wantNode("q", "")
		if _, err := c.client.CoreV1().PersistentVolumes().Create(t.Context(),
			localVolume("w", "2Gi", v1.LabelHostname, "n1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(30 * time.Second)
		c.wantNode("q", "n1")
		if a, b := c.claim("c").Spec.VolumeName, c.claim("d").Spec.VolumeName; a != "v" || b != "w" {
			t.Errorf("they got %q and %q", a, b)
		}
	})
}

// TestAVolumeThatIsGivenBackIsHeardOf: its pod could not be bound, and another waits for one.
func TestAVolumeThatIsGivenBackIsHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := startGate(t, append(classes(), node("n1", "4"), claim("c", existing, "1Gi"), claim("d", existing, "1Gi"),
			localVolume("v", "2Gi", v1.LabelHostname, "n1"))...)
		defer c.stop()
		versioned(c.client, func(ktesting.Action) error { return nil })
		defer runBinder(t, binder{client: c.client}, time.Second)()
		c.create(pod("p", "1", using("c")))
		c.create(pod("q", "1", using("d")))
		c.wantNode("q", "")
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(5 * time.Second)
		w := g.h.GetWaitingPod("q")
		if w == nil {
			t.Fatal("the other one does not wait to be let through")
		}
		w.Allow("Gate")
		c.after(5 * time.Second)
		c.wantNode("q", "n1")
	})
}

func TestARestartInTheMiddleOfABinding(t *testing.T) {
	for name, class := range map[string]string{"a volume that exists": existing, "one that is made": made} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startVolumes(t, node("n1", "4"), node("n2", "4"), claim("c", class, "1Gi"), claim("d", existing, "1Gi"),
					localVolume("v", "2Gi", v1.LabelHostname, "n1"), localVolume("w", "2Gi", v1.LabelHostname, "n2"))
				c.create(pod("p", "1", using("c")))
				begun := time.Now()
				c.stop()
				if d := time.Since(begun); d > 0 {
					t.Errorf("it took %v to stop", d)
				}
				c.wantNode("p", "")
				client := c.client
				c = startClient(t, aMinute(), client, client)
				defer c.stop()
				defer runBinder(t, binder{client: client}, time.Second)()
				c.create(pod("q", "1", using("d")))
				c.after(30 * time.Second)
				for _, name := range []string{"p", "q"} {
					if c.get(name).Spec.NodeName == "" {
						t.Errorf("%s has no node", name)
					}
				}
				kept := 0
				for _, name := range []string{"v", "w"} {
					if c.volume(name).Spec.ClaimRef != nil {
						kept++
					}
				}
				if want := map[string]int{existing: 2, made: 1}[class]; kept != want {
					t.Errorf("%d volumes are taken", kept)
				}
			})
		})
	}
}

func TestAVolumeIsMadeElsewhereIfItCannotBeMadeHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startVolumes(t, node("n1", "4"), node("n2", "1"), claim("c", made, "1Gi"))
		defer c.stop()
		defer runBinder(t, binder{client: c.client, fails: func(node string) bool { return node == "n1" }}, time.Second)()
		c.create(pod("p", "1", using("c")))
		if got := c.claim("c").Annotations[volume.AnnSelectedNode]; got != "n1" {
			t.Fatalf("selected %q", got)
		}
		c.after(time.Second)
		if got, want := c.said(v1.PodReasonSchedulerError), `running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "c"`; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Spec.Unschedulable = true
		if _, err := c.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(30 * time.Second)
		c.wantNode("p", "n2")
		if got := c.claim("c").Spec.VolumeName; got != "for-c" {
			t.Errorf("it got %q", got)
		}
	})
}

// TestTwoPodsShareAClaim: the second one waits for what the first one has begun.
func TestTwoPodsShareAClaim(t *testing.T) {
	for name, class := range map[string]string{"a volume that exists": existing, "one that is made": made} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startVolumes(t, node("n1", "4"), node("n2", "4"), claim("c", class, "1Gi"),
					localVolume("v", "2Gi", v1.LabelHostname, "n2"))
				defer c.stop()
				c.create(pod("p", "1", using("c")))
				c.create(pod("q", "1", using("c")))
				defer runBinder(t, binder{client: c.client}, time.Second)()
				c.after(2 * time.Second)
				where := c.get("p").Spec.NodeName
				if where == "" {
					t.Fatal("it has no node")
				}
				c.wantNode("q", where)
			})
		})
	}
}

func TestAClaimForOnePodIsPreempted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exclusive := claim("c", existing, "1Gi")
		exclusive.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
		exclusive.Spec.VolumeName = "v"
		metav1.SetMetaDataAnnotation(&exclusive.ObjectMeta, volume.AnnBindCompleted, "yes")
		c := startVolumes(t, node("n1", "4"), exclusive, localVolume("v", "2Gi", v1.LabelHostname, "n1"),
			pod("low", "1", on("n1"), using("c"), priority(0)))
		defer c.stop()
		c.create(pod("equal", "1", using("c"), priority(0)))
		c.wantMessage("equal",
			"0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod. "+
				"preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
		c.create(pod("high", "1", using("c"), priority(1)))
		c.settle()
		c.wantNode("high", "n1")
		if slices.Contains(c.names(), "low") {
			t.Error("the other one is still there")
		}
	})
}
