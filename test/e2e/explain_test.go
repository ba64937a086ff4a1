package e2e

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/explain"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

func TestExplainSaysWhatAPodWaitsFor(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("huge", func(p *v1.Pod) {
		p.Spec.NodeSelector = map[string]string{"example.com/none": "such"}
	}))
	c.create(busybox("image", func(p *v1.Pod) { p.Spec.Containers[0].Image = "registry.invalid/none:1" }))
	c.create(busybox("config", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "none"},
		}}}}
	}))
	c.create(busybox("crash", script("exit 3")))
	c.create(busybox("unready", func(p *v1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"sh", "-c", "echo not yet; false"}}}}
	}))
	c.create(busybox("well"))
	c.create(busybox("kept", func(p *v1.Pod) { p.Finalizers = []string{"example.com/keep"} }))
	c.await("kept", "ready", ready)
	c.must("kubectl", "delete", "pod", "kept", "--wait=false")
	for name, want := range map[string][]string{
		"huge":    {"Pending", "scheduler default-scheduler", "node(s) didn't match"},
		"image":   {"ImagePull", "image of container main", "next try: "},
		"config":  {"ContainerCreating", "volume settings", `configmap "none" not found`, "next try: "},
		"crash":   {"CrashLoopBackOff", "back-off of container main", "exit code 3", "kubectl logs -n default crash -c main --previous"},
		"unready": {"Running, not ready", "readiness probe of container main", "not yet"},
		"well":    {"It runs and is ready; it waits for nothing."},
		"kept":    {"Terminating", "finalizers example.com/keep"},
	} {
		c.explains(name, want)
	}
	c.until("when the image is pulled again is not said", func() bool { // nor is it during a pull
		var x explain.Explanation
		if err := json.Unmarshal([]byte(c.must("explain", "pod/image", "-o", "json")), &x); err != nil {
			t.Fatal(err)
		}
		return len(x.Waits) > 0 && x.Waits[0].Retry != nil
	})
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := c.client.CoreV1().Pods("default").Patch(t.Context(), "kept", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.dumpLeadsToItsPlan("well")
}

// explains waits until the explanation of a pod contains all of the texts.
func (c *cluster) explains(name string, want []string) {
	c.t.Helper()
	c.explainsObject("pod/"+name, "", want)
}

// dumpLeadsToItsPlan feeds what the kubelet shows of a pod to the plan.
func (c *cluster) dumpLeadsToItsPlan(name string) {
	t := c.t
	t.Helper()
	p := c.await(name, "ready", ready)
	data := c.must("kubectl", "get", "--raw", "/api/v1/nodes/"+p.Spec.NodeName+"/proxy/debug/pods/"+string(p.UID))
	var d podworker.Dump
	if err := json.Unmarshal([]byte(data), &d); err != nil {
		t.Fatal(err)
	}
	if got := podplan.Next(d.Input, d.At); got.Life != podplan.PodRunning || got.Life != d.Plan.Life || len(d.Transitions) == 0 {
		t.Errorf("life %q, dumped %q, %d transitions", got.Life, d.Plan.Life, len(d.Transitions))
	}
	var all []podworker.Summary
	data = c.must("kubectl", "get", "--raw", "/api/v1/nodes/"+p.Spec.NodeName+"/proxy/debug/pods")
	if err := json.Unmarshal([]byte(data), &all); err != nil || len(all) < 4 {
		t.Errorf("%v: %s", err, data)
	}
}
