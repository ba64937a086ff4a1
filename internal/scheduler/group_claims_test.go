package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/internal/scheduler"
)

// sharing has the pods of a group have a claim in common, one that is called so or, as dev, one from a template.
func sharing(g *schedulingv1beta1.PodGroup, claims ...string) *schedulingv1beta1.PodGroup {
	for _, c := range claims {
		ref := schedulingv1beta1.PodGroupResourceClaim{Name: c, ResourceClaimName: &c}
		if c == "dev" {
			ref.ResourceClaimName, ref.ResourceClaimTemplateName = nil, new("t")
		}
		g.Spec.ResourceClaims = append(g.Spec.ResourceClaims, ref)
	}
	return g
}

func claimTemplate() *resourcev1.ResourceClaimTemplate {
	t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "default"}}
	t.Spec.Spec = deviceClaim("", "gpu", 1).Spec
	return t
}

// startSharing starts a scheduler of pod groups and the controller of claims.
func startSharing(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	cfg := scheduler.DefaultConfig()
	cfg.PodGroups = true
	return startDevices(t, cfg, objs...)
}

// users returns for whom a claim is reserved, as RESOURCE/NAME, and whether it has a device.
func (c *cluster) users(claim string) string {
	c.t.Helper()
	var out []string
	for _, r := range c.deviceClaim(claim).Status.ReservedFor {
		out = append(out, r.Resource+"/"+r.Name)
	}
	return strings.Join(out, " ")
}

func (c *cluster) wantUsers(claim, want string) {
	c.t.Helper()
	if got := c.users(claim); got != want {
		c.t.Errorf("claim %s is reserved for %q, want %q", claim, got, want)
	}
}

// TestAGroupsPodsHaveItsClaim, whether they call it by its name or it is made from a template: it is reserved for the
// group once, and keeps its device until the group is gone. Another claim of such a pod is its own.
func TestAGroupsPodsHaveItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startSharing(t, node("n1", "4"), node("n2", "9", room(10)), deviceSlice("n2", "a", "b", "c"), claimTemplate(),
			deviceClaim("named", "gpu", 1), deviceClaim("own", "gpu", 1), sharing(gang("g", 3), "named", "dev"))
		defer c.stop()
		for i := range 2 {
			c.create(pod(fmt.Sprintf("m%d", i), "1", member("g"), withDevices("named"), withTemplate("t")))
		}
		c.create(pod("m2", "1", member("g"), withDevices("named", "own"), withTemplate("t")))
		c.settle()
		for i := range 3 {
			c.wantNode(fmt.Sprintf("m%d", i), "n2")
		}
		list, err := c.client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 3 {
			t.Fatalf("there are %d claims, want one for the whole group besides two that somebody made", len(list.Items))
		}
		for _, its := range list.Items {
			want := "podgroups/g"
			if its.Name == "own" {
				want = "pods/m2"
			}
			c.wantUsers(its.Name, want)
		}
		for i := range 3 {
			c.delete(fmt.Sprintf("m%d", i))
		}
		c.settle()
		if c.has("named") == "" || c.has("own") != "" {
			t.Errorf("the group's claim has %q, that of its pod %q", c.has("named"), c.has("own"))
		}
		if err := c.client.SchedulingV1beta1().PodGroups("default").Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.wantDevices("named", "")
	})
}

// TestMoreThan256PodsOfAGroupUseAClaim, since it is reserved for the group.
func TestMoreThan256PodsOfAGroupUseAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startSharing(t, node("n1", "4", room(1000)), deviceSlice("n1", "a"), deviceClaim("c", "gpu", 1), sharing(gang("g", 0), "c"))
		defer c.stop()
		const n = resourcev1.ResourceClaimReservedForMaxSize + 4
		for i := range n {
			c.create(pod(fmt.Sprintf("m%d", i), "0", member("g"), withDevices("c")))
		}
		c.settle()
		for i := range n {
			c.wantNode(fmt.Sprintf("m%d", i), "n1")
		}
		c.wantUsers("c", "podgroups/g")
	})
}

// TestAClaimIsNotTheLastGroups: another group of the same name had it, and what is reserved for that one goes.
func TestAClaimIsNotTheLastGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := deviceClaim("c", "gpu", 1)
		claim.Finalizers, claim.Status.Allocation = []string{resourcev1.Finalizer}, onNode("n1", "a")
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
			{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "the-last-one"},
			{Resource: "pods", Name: "u", UID: "u"},
		}
		c := startSharing(t, node("n1", "4"), deviceSlice("n1", "a"), claim, sharing(gang("g", 0), "c"),
			pod("u", "1", on("n1"), withDevices("c")))
		defer c.stop()
		c.create(pod("m", "1", member("g"), withDevices("c")))
		c.settle()
		c.wantNode("m", "n1")
		c.delete("u")
		c.settle()
		for _, r := range c.deviceClaim("c").Status.ReservedFor {
			if r.UID == "group-g" {
				c.wantDevices("c", "n1/a")
				return
			}
		}
		t.Errorf("reserved for %+v", c.deviceClaim("c").Status.ReservedFor)
	})
}

// TestAGangGivesUpWhatKeepsItOffOtherNodes: devices that a former attempt has written to a claim, on a node on which not
// all of it fits; and not those that a pod of it uses, or somebody else.
func TestAGangGivesUpWhatKeepsItOffOtherNodes(t *testing.T) {
	group := resourcev1.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "group-g"}
	for name, tc := range map[string]struct {
		least int32
		users []resourcev1.ResourceClaimConsumerReference
		runs  []string // groups of pods that run on n1 with the claim
		nodes [2]string
	}{
		"nobody uses it":            {2, nil, nil, [2]string{"n2", "n2"}},
		"it is the gang's":          {2, []resourcev1.ResourceClaimConsumerReference{group}, nil, [2]string{"n2", "n2"}},
		"a pod of the gang runs":    {3, []resourcev1.ResourceClaimConsumerReference{group}, []string{"g"}, [2]string{"", ""}},
		"somebody else uses it":     {2, []resourcev1.ResourceClaimConsumerReference{group, {Resource: "pods", Name: "r0", UID: "r0"}}, []string{"other"}, [2]string{"", ""}},
		"each is on its own":        {0, []resourcev1.ResourceClaimConsumerReference{group}, nil, [2]string{"n1", ""}},
		"enough of the gang may be": {1, []resourcev1.ResourceClaimConsumerReference{group}, nil, [2]string{"n1", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := deviceClaim("c", "gpu", 1)
				claim.Finalizers, claim.Status.Allocation, claim.Status.ReservedFor = []string{resourcev1.Finalizer}, onNode("n1", "a"), tc.users
				objs := []runtime.Object{
					node("n1", "1"), node("n2", "2"), deviceSlice("n1", "a"), deviceSlice("n2", "a"), claim, sharing(gang("g", tc.least), "c"), gang("other", 0),
				}
				for i, g := range tc.runs {
					objs = append(objs, pod(fmt.Sprintf("r%d", i), "0", on("n1"), member(g), withDevices("c")))
				}
				c := startSharing(t, objs...)
				defer c.stop()
				c.create(pod("m0", "1", member("g"), withDevices("c")))
				c.create(pod("m1", "1", member("g"), withDevices("c")))
				c.settle()
				c.after(10 * time.Second)
				for i, want := range tc.nodes {
					c.wantNode(fmt.Sprintf("m%d", i), want)
				}
				where := "n1/a"
				if tc.nodes[0] == "n2" {
					where = "n2/a"
				}
				c.wantDevices("c", where)
			})
		})
	}
}

// TestAGangRemovesWhatIsStale: a scheduler that ended in the middle has made a claim for the extended resources of one of
// its pods. Nobody looked after such pods of gangs.
func TestAGangRemovesWhatIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stale := deviceClaim("stale", "gpu", 1)
		stale.Finalizers, stale.Status.Allocation = []string{resourcev1.Finalizer}, onNode("n1", "a")
		stale.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		stale.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "m0", UID: "m0", Controller: new(true)}}
		c := startSharing(t, node("n1", "4"), deviceSlice("n1", "a", "b"), stale, gang("g", 2))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("m0", "1", member("g"), asks(extendedGPU, "1")))
		c.create(pod("m1", "1", member("g"), asks(extendedGPU, "1")))
		c.settle()
		c.after(10 * time.Second)
		c.wantNode("m0", "n1")
		c.wantNode("m1", "n1")
		list, err := c.client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 {
			t.Errorf("%v, %d claims", err, len(list.Items))
		}
		for _, its := range list.Items {
			if its.Name == "stale" {
				t.Error("the stale claim is still there")
			}
		}
	})
}
