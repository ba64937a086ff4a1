package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/test/images"
)

// TestANodeWithoutSomeAPIs: what is switched off is not there, and all else goes on: pods, deployments, the garbage
// collector, the deletion of namespaces, names of services.
func TestANodeWithoutSomeAPIs(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--apiserver-arg=runtime-config=batch/v1=false,apps/v1/daemonsets=false,autoscaling/v2=false")
	c.up()
	for path, want := range map[string]int{
		"/apis/batch/v1/jobs": http.StatusNotFound, "/apis/apps/v1/daemonsets": http.StatusNotFound, "/apis/autoscaling/v2": http.StatusNotFound,
		"/apis/autoscaling/v1/horizontalpodautoscalers": http.StatusOK, "/apis/apps/v1/deployments": http.StatusOK,
	} {
		var got int
		c.client.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&got)
		if got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
	if _, err := c.try("kubectl", "get", "jobs"); err == nil || !strings.Contains(err.Error(), `the server doesn't have a resource type "jobs"`) {
		t.Errorf("kubectl get jobs: %v", err)
	}
	c.rollsOutAndLeavesNothing("web")
	c.kubectl("create", "namespace", "temporary")
	c.kubectl("create", "configmap", "m", "--namespace", "temporary")
	c.kubectl("delete", "namespace", "temporary", "--timeout", patience.String())
	log, err := os.ReadFile(filepath.Join(c.data, "log", "wherry.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"job-controller", "cronjob-controller", "ttl-after-finished-controller", "daemonset-controller", "horizontal-pod-autoscaler-controller"} {
		if !strings.Contains(string(log), `Controller does not run: the API server does not serve what it needs" controller="`+name+`"`) {
			t.Errorf("the log does not say that there is no %s", name)
		}
	}
	for _, gone := range []string{"v1.Job", "v1.CronJob", "v1.DaemonSet", "v2.HorizontalPodAutoscaler"} {
		if strings.Contains(string(log), "Failed to watch") && strings.Contains(string(log), gone) {
			t.Errorf("somebody watches %s", gone)
		}
	}
}
