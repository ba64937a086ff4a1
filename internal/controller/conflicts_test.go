package controller_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/disruption"
	"wherry.dev/internal/controller/endpoints"
	"wherry.dev/internal/controller/endpointslice"
	"wherry.dev/internal/controller/endpointslicemirroring"
	"wherry.dev/internal/controller/loadbalancer"
	"wherry.dev/internal/controller/protection"
	"wherry.dev/internal/controller/resourcequota"
	"wherry.dev/internal/controller/rootca"
	"wherry.dev/internal/controller/serviceaccount"
)

// one makes clusterOf run a single controller.
func one[C controller.Controller](build func(clientset.Interface, informers.SharedInformerFactory) (C, error)) func(clientset.Interface, informers.SharedInformerFactory) ([]controller.Controller, error) {
	return func(c clientset.Interface, f informers.SharedInformerFactory) ([]controller.Controller, error) {
		built, err := build(c, f)
		return []controller.Controller{built}, err
	}
}

func newQuotas(c clientset.Interface, f informers.SharedInformerFactory) (*resourcequota.Controller, error) {
	return resourcequota.New(c, metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()), f)
}

func newBudgets(c clientset.Interface, f informers.SharedInformerFactory) (*disruption.Controller, error) {
	return disruption.New(c, f, nil)
}

func newBalancers(c clientset.Interface, f informers.SharedInformerFactory) (*loadbalancer.Controller, error) {
	return loadbalancer.New(c, f, nil)
}

func newRootCA(c clientset.Interface, f informers.SharedInformerFactory) (*rootca.Controller, error) {
	return rootca.New(c, c, f, []byte("ca"))
}

// disrupted is a pod that was to be disrupted a while ago, and was not.
func disrupted(i int) *v1.Pod {
	p := backend(i, true)
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
	})
	return p
}

// addressed is a node that services can be reached at.
func addressed() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{
		Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.7"}},
		Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
	}}
}

// refusals is a webhook that answers each write with a conflict while it is on. Events pass.
type refusals struct{ on atomic.Bool }

func (r *refusals) react(act k8stesting.Action) (bool, runtime.Object, error) {
	if !r.on.Load() || act.GetResource().Resource == "events" || act.GetVerb() == "get" || act.GetVerb() == "list" {
		return false, nil, nil
	}
	return true, nil, apierrors.NewConflict(act.GetResource().GroupResource(), "x", errors.New("the webhook says so"))
}

// counts returns how many requests there were, watches and lists apart, and how many events were told.
func counts(actions []k8stesting.Action) (asked, told int) {
	for _, act := range actions {
		switch {
		case act.GetResource().Resource == "events":
			told++
		case act.GetVerb() != "watch" && act.GetVerb() != "list":
			asked++
		}
	}
	return asked, told
}

// Where a webhook answers each write of a controller with a conflict, the write is repeated ever more
// seldom, the controller asks for nothing else meanwhile, and says little; when the webhook is gone, the
// write succeeds and there is an end.
func TestConflictsOnEveryWriteOfAServicesControllers(t *testing.T) {
	withoutSelector := func(s *v1.Service) { s.Spec.Selector = nil }
	balanced := func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeLoadBalancer }
	by := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}, Subsets: []v1.EndpointSubset{{
		Addresses: []v1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []v1.EndpointPort{{Port: 80, Protocol: v1.ProtocolTCP}},
	}}}
	quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q"}, Spec: v1.ResourceQuotaSpec{
		Hard: v1.ResourceList{v1.ResourcePods: resource.MustParse("9")},
	}}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Generation: 1}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels()}, MinAvailable: new(intstr.FromInt32(1)),
	}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "c", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{"kubernetes.io/pvc-protection"},
	}}
	for name, tt := range map[string]struct {
		build func(clientset.Interface, informers.SharedInformerFactory) ([]controller.Controller, error)
		objs  []runtime.Object
		done  func(*cluster) bool
	}{
		"endpoint slices": {one(endpointslice.New), []runtime.Object{webService(), backend(1, true), addressed()}, func(c *cluster) bool { return len(c.slices()) == 1 }},
		"endpoints":       {one(endpoints.New), []runtime.Object{webService(), backend(1, true)}, func(c *cluster) bool { return len(c.old("web")) == 1 && c.old("web")[0] != "none" }},
		"mirrors":         {one(endpointslicemirroring.New), []runtime.Object{webService(withoutSelector), by}, func(c *cluster) bool { return len(c.slices()) == 1 }},
		"load balancer": {one(newBalancers), []runtime.Object{webService(balanced), addressed()}, func(c *cluster) bool {
			s, err := c.CoreV1().Services("a").Get(c.t.Context(), "web", metav1.GetOptions{})
			return err == nil && len(s.Status.LoadBalancer.Ingress) == 1
		}},
		"disruption budget": {one(newBudgets), []runtime.Object{budget, backend(1, true)}, func(c *cluster) bool {
			b, err := c.PolicyV1().PodDisruptionBudgets("a").Get(c.t.Context(), "b", metav1.GetOptions{})
			return err == nil && b.Status.CurrentHealthy == 1
		}},
		"disruption that did not come": {one(newBudgets), []runtime.Object{disrupted(1)}, func(c *cluster) bool {
			p := c.pods()[0]
			return p.Status.Conditions[1].Status == v1.ConditionFalse
		}},
		"quota": {one(newQuotas), []runtime.Object{quota, backend(1, true)}, func(c *cluster) bool {
			q, err := c.CoreV1().ResourceQuotas("a").Get(c.t.Context(), "q", metav1.GetOptions{})
			used := v1.ResourceList{v1.ResourcePods: resource.MustParse("1")}
			return err == nil && equality.Semantic.DeepEqual(q.Status.Used, used)
		}},
		"service account": {one(serviceaccount.New), []runtime.Object{namespace("a")}, func(c *cluster) bool {
			_, err := c.CoreV1().ServiceAccounts("a").Get(c.t.Context(), "default", metav1.GetOptions{})
			return err == nil
		}},
		"root CA": {one(newRootCA), []runtime.Object{namespace("a")}, func(c *cluster) bool {
			_, err := c.CoreV1().ConfigMaps("a").Get(c.t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
			return err == nil
		}},
		"claim": {one(protection.NewForClaims), []runtime.Object{claim}, func(c *cluster) bool {
			claim, err := c.CoreV1().PersistentVolumeClaims("a").Get(c.t.Context(), "c", metav1.GetOptions{})
			return err != nil || len(claim.Finalizers) == 0
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var webhook refusals
				webhook.on.Store(true)
				var objs []runtime.Object
				for _, o := range tt.objs {
					objs = append(objs, o.DeepCopyObject())
				}
				c, stop := clusterOf(t, objs, func(c clientset.Interface, f informers.SharedInformerFactory) ([]controller.Controller, error) {
					c.(*fake.Clientset).PrependReactor("*", "*", webhook.react)
					return tt.build(c, f)
				})
				defer stop()
				time.Sleep(10 * time.Minute)
				if tt.done(c) {
					t.Fatal("it is done although each write is refused")
				}
				if asked, told := counts(c.Actions()); asked < 10 || asked > 80 || told > 30 {
					t.Errorf("%d requests and %d events in ten minutes", asked, told)
				}
				webhook.on.Store(false)
				time.Sleep(time.Minute)
				if !tt.done(c) {
					t.Error("it is not done a minute after the conflicts")
				}
				c.ClearActions()
				time.Sleep(10 * time.Minute)
				if asked, told := counts(c.Actions()); asked+told > 0 {
					t.Errorf("%d requests and %d events at rest: %v", asked, told, c.Actions())
				}
			})
		})
	}
}
