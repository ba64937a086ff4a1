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

const firstImage, secondImage = "docker.io/library/busybox:1.36", "docker.io/library/busybox:second"

// saveSecond saves busybox under another tag: another image, as far as a Deployment knows.
func saveSecond(path string) error {
	root, err := images.Busybox()
	if err != nil {
		return err
	}
	img, err := images.New(imageConfig(), root)
	if err != nil {
		return err
	}
	return images.Save(path, img, secondImage)
}

// A Deployment through kubectl, as a user would: create, update, undo, scale, pause, resume, delete.
func TestDeployment(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.addImage("second.tar", saveSecond)
	c.up()
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--replicas", "3", "--", "sh", "-c", loop)
	c.rolledOut()
	c.podsHave("the first rollout", 3, firstImage)
	first := c.sets()[0].Name

	c.kubectl("set", "image", "deployment/web", "busybox="+secondImage)
	c.rolledOut()
	c.podsHave("set image", 3, secondImage)
	for _, rs := range c.sets() {
		if n := *rs.Spec.Replicas; rs.Name == first && n != 0 || rs.Name != first && n != 3 {
			t.Errorf("replica set %s has %d replicas; the first is %s", rs.Name, n, first)
		}
	}
	if got := c.kubectl("rollout", "history", "deployment/web"); !strings.Contains(got, "1 ") || !strings.Contains(got, "2 ") {
		t.Errorf("history: %s", got)
	}

	// Now, because more than ten similar events would become one.
	for _, want := range []string{"Scaled up replica set " + first + " from 0 to 3", "Scaled down replica set " + first + " from 1 to 0"} {
		c.until("an event tells "+want, func() bool { return strings.Contains(c.kubectl("events", "--for", "deployment/web"), want) })
	}

	c.kubectl("rollout", "undo", "deployment/web")
	c.rolledOut()
	c.podsHave("undo", 3, firstImage)
	sets := c.sets()
	if i := slices.IndexFunc(sets, func(rs appsv1.ReplicaSet) bool { return rs.Name == first }); len(sets) != 2 || sets[i].Annotations["deployment.kubernetes.io/revision"] != "3" {
		t.Errorf("replica sets: %+v", sets)
	}

	c.kubectl("scale", "deployment/web", "--replicas", "5")
	c.rolledOut()
	c.podsHave("scale up", 5, firstImage)
	c.kubectl("scale", "deployment/web", "--replicas", "2")
	c.rolledOut()
	c.podsHave("scale down", 2, firstImage)

	c.kubectl("rollout", "pause", "deployment/web")
	c.kubectl("set", "image", "deployment/web", "busybox="+secondImage)
	c.until("the pause is told", func() bool { return c.reason(appsv1.DeploymentProgressing) == "DeploymentPaused" })
	c.podsHave("pause", 2, firstImage)
	c.kubectl("rollout", "resume", "deployment/web")
	c.rolledOut()
	c.podsHave("resume", 2, secondImage)

	// One that dies is replaced.
	victim := c.webPods()[0].Name
	c.delete(victim)
	c.rolledOut()
	c.podsHave("a deletion", 2, secondImage)

	c.goes("deployment/web")
}

// rolledOut waits as a user would, until kubectl says so.
func (c *cluster) rolledOut() {
	c.t.Helper()
	if got := c.kubectl("rollout", "status", "deployment/web", "--timeout", fmt.Sprint(patience)); !strings.Contains(got, "successfully rolled out") {
		c.t.Errorf("rollout status: %s", got)
	}
}

// webPods returns the workload's pods that nobody has deleted.
func (c *cluster) webPods() []v1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.DeletionTimestamp != nil })
}

// podsHave checks how many pods there are, that all of them run the image, and that all are ready.
func (c *cluster) podsHave(when string, n int, image string) {
	c.t.Helper()
	pods := c.webPods()
	for _, p := range pods {
		if p.Spec.Containers[0].Image != image || !ready(&p) {
			c.t.Errorf("%s: pod %s has the image %s\n%s", when, p.Name, p.Spec.Containers[0].Image, describe(&p))
		}
	}
	if len(pods) != n {
		c.t.Errorf("%s: %d pods, want %d", when, len(pods), n)
	}
}

// sets returns the replica sets.
func (c *cluster) sets() []appsv1.ReplicaSet {
	c.t.Helper()
	list, err := c.client.AppsV1().ReplicaSets(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// reason returns the reason of a condition of the deployment web.
func (c *cluster) reason(kind appsv1.DeploymentConditionType) string {
	c.t.Helper()
	d, err := c.client.AppsV1().Deployments(metav1.NamespaceDefault).Get(c.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, cond := range d.Status.Conditions {
		if cond.Type == kind {
			return cond.Reason
		}
	}
	return ""
}

// goes deletes a workload; the garbage collector takes all that it has made.
func (c *cluster) goes(what string) {
	c.t.Helper()
	c.kubectl("delete", what)
	c.until("nothing is left of "+what, func() bool {
		list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		return err == nil && len(list.Items) == 0 && len(c.sets()) == 0
	})
}

func TestReplicationController(t *testing.T) {
	c := startCluster(t)
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: busybox("").Spec}
	_, err := c.client.CoreV1().ReplicationControllers(metav1.NamespaceDefault).Create(t.Context(), &v1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ReplicationControllerSpec{Replicas: new(int32(2)), Template: &template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl("wait", "replicationcontroller/web", "--for", "jsonpath={.status.readyReplicas}=2", "--timeout", fmt.Sprint(patience))
	c.podsHave("creation", 2, firstImage)
	c.goes("replicationcontroller/web")
}
