package horizontalpodautoscaler

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	scalefake "k8s.io/client-go/scale/fake"
	k8stesting "k8s.io/client-go/testing"
)

// target is a deployment with a size, whose writes, or those of autoscalers, conflict on demand.
type target struct {
	mu      sync.Mutex
	size    int32
	refuses string // the resource whose writes conflict
	asked   int    // writes that conflicted
}

func (w *target) refuse(act k8stesting.Action) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if act.GetResource().Resource != w.refuses || act.GetVerb() != "update" {
		return nil
	}
	w.asked++
	return apierrors.NewConflict(act.GetResource().GroupResource(), "x", errors.New("the webhook says so"))
}

func (w *target) scale(act k8stesting.Action) (bool, runtime.Object, error) {
	if err := w.refuse(act); err != nil {
		return true, nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if update, ok := act.(k8stesting.UpdateAction); ok {
		w.size = update.GetObject().(*autoscalingv1.Scale).Spec.Replicas
	}
	return true, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "default"},
		Spec:       autoscalingv1.ScaleSpec{Replicas: w.size},
		Status:     autoscalingv1.ScaleStatus{Replicas: w.size, Selector: "app=w"},
	}, nil
}

func (w *target) look() (size int32, asked int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size, w.asked
}

// fixedMapper knows deployments.
type fixedMapper struct{}

func (fixedMapper) RESTMappings(gk schema.GroupKind, _ ...string) ([]*meta.RESTMapping, error) {
	return []*meta.RESTMapping{{Resource: schema.GroupVersionResource{Group: gk.Group, Version: "v1", Resource: "deployments"}}}, nil
}

func (fixedMapper) Reset() {}

// begin runs the controller on two pods, and an autoscaler that may add one pod in a minute.
func (w *target) begin(t *testing.T) (client *fake.Clientset, stop func()) {
	t.Helper()
	p0, p1 := pod("p0"), pod("p1")
	p0.Namespace, p1.Namespace = "default", "default"
	p0.Labels, p1.Labels = map[string]string{"app": "w"}, map[string]string{"app": "w"}
	client = fake.NewClientset(p0, p1, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MinReplicas: new(int32(1)), MaxReplicas: 100, Metrics: []autoscalingv2.MetricSpec{halfCPU()},
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "w"},
			Behavior:       &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(autoscalingv2.MaxChangePolicySelect, 0, count(1, 60))},
		},
	})
	client.PrependReactor("*", "*", func(act k8stesting.Action) (bool, runtime.Object, error) {
		err := w.refuse(act)
		return err != nil, nil, err
	})
	scales := &scalefake.FakeScaleClient{}
	scales.AddReactor("*", "deployments", w.scale)
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := build(client, f, scales, fixedMapper{}, &gauge{samples: uses(90_000, 90_000)}, Defaults)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return client, func() { cancel(); running.Wait(); f.Shutdown() }
}

// What a webhook answers with conflicts is repeated ever more seldom. A size that was set is remembered
// even if the status that tells of it could not be written: the autoscaler keeps to its pace.
func TestConflictsOnEveryWrite(t *testing.T) {
	for resource, grows := range map[string]bool{"deployments": false, "horizontalpodautoscalers": true} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &target{size: 2, refuses: resource}
				client, stop := w.begin(t)
				defer stop()
				time.Sleep(10*time.Minute - time.Second)
				size, asked := w.look()
				if grows && (size < 10 || size > 12) || !grows && size != 2 {
					t.Errorf("size %d after ten minutes of one a minute", size)
				}
				if asked < 10 || asked > 300 {
					t.Errorf("%d writes that conflicted", asked)
				}
				told := 0
				for _, act := range client.Actions() {
					if act.GetResource().Resource == "events" {
						told++
					}
				}
				if told > 100 {
					t.Errorf("%d events", told)
				}
				w.mu.Lock()
				w.refuses = ""
				w.mu.Unlock()
				time.Sleep(time.Minute)
				a, err := client.AutoscalingV2().HorizontalPodAutoscalers("default").Get(t.Context(), "a", metav1.GetOptions{})
				if size, _ := w.look(); err != nil || a.Status.DesiredReplicas != size {
					t.Errorf("status %+v, size %d, %v", a.Status, size, err)
				}
			})
		})
	}
}
