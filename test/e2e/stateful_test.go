package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/images"
)

// twoImages starts a node that has both images.
func twoImages(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.addImage("second.tar", saveSecond)
	c.up()
	return c
}

// webOf returns a workload of the kind, named web, with what else its spec has.
func webOf(kind, spec string) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: %s, metadata: {name: web}, spec: {%s, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 1,
    containers: [{name: busybox, image: %q, command: [sh, -c, %q]}]}}}}`, kind, spec, firstImage, loop)
}

// rollsOut waits as a user would, until kubectl says that a workload's rollout is over.
func (c *cluster) rollsOut(what, says string) {
	c.t.Helper()
	if got := c.kubectl("rollout", "status", what, "--timeout", fmt.Sprint(patience)); !strings.Contains(got, says) {
		c.t.Errorf("rollout status of %s: %s", what, got)
	}
}

// byName returns the images of the workload's pods by their names.
func (c *cluster) byName() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	for _, p := range c.webPods() {
		out[p.Name] = p.Spec.Containers[0].Image
	}
	return out
}

func (c *cluster) have(when string, want map[string]string) {
	c.t.Helper()
	if got := c.byName(); fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Errorf("%s: %v, want %v", when, got, want)
	}
}

// A StatefulSet through kubectl: pods start in order under names that stay, it is scaled, updated in
// part, then as a whole, and taken back.
func TestStatefulSet(t *testing.T) {
	c := twoImages(t)
	c.kubectl("apply", "-f", c.file(webOf("StatefulSet", "serviceName: web, replicas: 3, revisionHistoryLimit: 3")))
	c.rollsOut("statefulset/web", "roll out complete: 3 new pods have been updated")
	c.have("the start", map[string]string{"web-0": firstImage, "web-1": firstImage, "web-2": firstImage})
	c.startedInOrder(3)
	if got := c.exec("web-1", "hostname"); strings.TrimSpace(got) != "web-1" {
		t.Errorf("hostname %q", got)
	}
	first := c.get("web-0")
	if first.Spec.Subdomain != "web" || first.Labels["apps.kubernetes.io/pod-index"] != "0" || first.Labels["statefulset.kubernetes.io/pod-name"] != "web-0" {
		t.Errorf("labels %v, subdomain %q", first.Labels, first.Spec.Subdomain)
	}

	uid := c.get("web-1").UID
	c.kubectl("delete", "pod", "web-1")
	c.until("there is another web-1", func() bool {
		p, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "web-1", metav1.GetOptions{})
		return err == nil && p.UID != uid && ready(p)
	})

	c.kubectl("scale", "statefulset/web", "--replicas", "1")
	c.until("only web-0 is left", func() bool { return len(c.byName()) == 1 })
	c.kubectl("scale", "statefulset/web", "--replicas", "3")
	c.until("all are back", func() bool { return c.statefulSet().Status.AvailableReplicas == 3 })

	c.kubectl("patch", "statefulset/web", "--patch", `{"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}}`)
	c.kubectl("set", "image", "statefulset/web", "busybox="+secondImage)
	c.rollsOut("statefulset/web", "partitioned roll out complete: 1 new pods have been updated")
	c.have("a partition", map[string]string{"web-0": firstImage, "web-1": firstImage, "web-2": secondImage})
	c.kubectl("patch", "statefulset/web", "--patch", `{"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}`)
	c.rollsOut("statefulset/web", "roll out complete: 3 new pods have been updated")
	c.have("the whole", map[string]string{"web-0": secondImage, "web-1": secondImage, "web-2": secondImage})
	if got := c.kubectl("rollout", "history", "statefulset/web"); !strings.Contains(got, "1 ") || !strings.Contains(got, "2 ") {
		t.Errorf("history: %s", got)
	}

	c.kubectl("rollout", "undo", "statefulset/web")
	c.rollsOut("statefulset/web", "roll out complete: 3 new pods have been updated")
	c.have("undo", map[string]string{"web-0": firstImage, "web-1": firstImage, "web-2": firstImage})
	if revs := c.revisions(); len(revs) != 2 {
		t.Errorf("%d revisions", len(revs))
	}
	c.goes("statefulset/web")
	c.until("its revisions are gone", func() bool { return len(c.revisions()) == 0 })
}

func (c *cluster) statefulSet() *appsv1.StatefulSet {
	c.t.Helper()
	set, err := c.client.AppsV1().StatefulSets(metav1.NamespaceDefault).Get(c.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return set
}

func (c *cluster) revisions() []appsv1.ControllerRevision {
	c.t.Helper()
	list, err := c.client.AppsV1().ControllerRevisions(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// startedInOrder checks that no pod was made before the one before it was ready. Times are in seconds.
func (c *cluster) startedInOrder(n int) {
	c.t.Helper()
	for i := 1; i < n; i++ {
		before, p := c.get(fmt.Sprint("web-", i-1)), c.get(fmt.Sprint("web-", i))
		k := slices.IndexFunc(before.Status.Conditions, func(cond v1.PodCondition) bool { return cond.Type == v1.PodReady })
		if p.CreationTimestamp.Before(&before.Status.Conditions[k].LastTransitionTime) {
			c.t.Errorf("%s was made before %s was ready", p.Name, before.Name)
		}
	}
}

// A DaemonSet has one pod on the node, which is replaced by an update and by its undoing.
func TestDaemonSet(t *testing.T) {
	c := twoImages(t)
	c.kubectl("apply", "-f", c.file(webOf("DaemonSet", "revisionHistoryLimit: 3")))
	c.rollsOut("daemonset/web", "successfully rolled out")
	c.podsHave("the start", 1, firstImage)
	c.kubectl("set", "image", "daemonset/web", "busybox="+secondImage)
	c.rollsOut("daemonset/web", "successfully rolled out")
	c.podsHave("an update", 1, secondImage)
	c.kubectl("rollout", "undo", "daemonset/web")
	c.rollsOut("daemonset/web", "successfully rolled out")
	c.podsHave("undo", 1, firstImage)

	// The new one comes before the old one goes.
	c.kubectl("patch", "daemonset/web", "--patch", `{"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}`)
	c.kubectl("set", "image", "daemonset/web", "busybox="+secondImage)
	c.rollsOut("daemonset/web", "successfully rolled out")
	c.until("the old one is gone", func() bool { return len(c.webPods()) == 1 })
	c.podsHave("a surge", 1, secondImage)

	// It stays on a node that takes no pods, and goes where it is not wanted.
	node := c.webPods()[0].Spec.NodeName
	c.kubectl("cordon", node)
	c.delete(c.webPods()[0].Name)
	c.until("there is another one on the cordoned node", func() bool {
		pods := c.webPods()
		return len(pods) == 1 && ready(&pods[0])
	})
	c.kubectl("uncordon", node)
	c.kubectl("taint", "node", node, "mine=x:NoExecute")
	c.until("it has left the tainted node", func() bool { return len(c.webPods()) == 0 })
	c.kubectl("taint", "node", node, "mine-")
	c.rollsOut("daemonset/web", "successfully rolled out")
	c.goes("daemonset/web")
}

// kubectl drain respects a budget: it waits until that allows the eviction.
func TestDrainRespectsABudget(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--replicas", "3", "--", "sh", "-c", loop)
	c.rolledOut()
	c.kubectl("create", "poddisruptionbudget", "web", "--selector", "app=web", "--min-available", "2")
	c.kubectl("wait", "poddisruptionbudget/web", "--for", "jsonpath={.status.disruptionsAllowed}=1", "--timeout", fmt.Sprint(patience))
	node := c.webPods()[0].Spec.NodeName

	// Replacements cannot run on the only node, which is cordoned, so only one may go.
	if out, err := c.try("kubectl", "drain", node, "--ignore-daemonsets", "--force", "--pod-selector", "app=web", "--timeout", "10s"); err == nil {
		t.Errorf("drained: %s", out)
	}
	running := func() (n int) {
		for _, p := range c.webPods() {
			if ready(&p) {
				n++
			}
		}
		return n
	}
	if n := running(); n < 2 {
		t.Errorf("%d pods run, want 2", n)
	}
	c.until("the budget says so", func() bool {
		b, err := c.client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && b.Status.DisruptionsAllowed == 0 && b.Status.CurrentHealthy == 2 && b.Status.DesiredHealthy == 2 && b.Status.ExpectedPods == 3
	})
	if n := running(); n != 2 {
		t.Errorf("%d pods run, want 2", n)
	}
	c.kubectl("patch", "poddisruptionbudget/web", "--patch", `{"spec": {"minAvailable": 0}}`)
	c.kubectl("drain", node, "--ignore-daemonsets", "--force", "--pod-selector", "app=web", "--timeout", fmt.Sprint(patience))
	for _, p := range c.webPods() {
		if p.Spec.NodeName != "" {
			t.Errorf("%s is still on the node", p.Name)
		}
	}
	c.kubectl("uncordon", node)
	c.rolledOut()
	c.goes("deployment/web")
}
