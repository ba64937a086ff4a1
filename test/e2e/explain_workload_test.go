package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/explain"
)

// What holds up a workload or a service is said down to the pod that does.
func TestExplainSaysWhatWorkloadsWaitFor(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--replicas", "2", "--port", "8080", "--", "sh", "-c", hello)
	c.rolledOut()
	c.kubectl("create", "deployment", "broken", "--image", "registry.invalid/none:1")
	c.forbidPods("full")
	c.kubectl("create", "deployment", "-n", "full", "none", "--image", firstImage)
	c.service("typo", map[string]string{"app": "wbe"}, 8080)
	c.service("port", map[string]string{"app": "web"}, 8081)
	c.service("well", map[string]string{"app": "web"}, 8080)
	c.kubectl("create", "job", "fails", "--image", firstImage, "--", "sh", "-c", "exit 3")
	c.kubectl("create", "cronjob", "rare", "--image", firstImage, "--schedule", "0 0 1 1 *", "--", "true")

	for object, want := range map[string][]string{
		"deploy/web":       {"deployment default/web: 2/2 available", "The rollout is done: 2 pods of the newest template, 2 available, 2 wanted."},
		"deploy/broken":    {"0/1 available", "It waits for: pod broken-", "  pod default/broken-", "image of container none", "next try: "},
		"deploy/none full": {"0/1 available", "It waits for: creation of pods of replica set none-", "exceeded quota: none", "the quota is raised"},
		"svc/typo":         {"It does not answer.", "selector app=wbe", "app=web instead of wbe"},
		"svc/port":         {"target of port 80/TCP → 8081", "declares port 8081; declared are 8080/TCP"},
		"svc/well":         {"It answers, with 2 ready endpoints.", "reached in the cluster as well.default.svc"},
		"job/fails":        {"back-off after failed pods", "exit code 3"},
		"cj/rare":          {"It runs next in ", "it has not run yet"},
	} {
		name, namespace, _ := strings.Cut(object, " ")
		c.explainsObject(name, namespace, want)
	}
	var x explain.Explanation
	if err := json.Unmarshal([]byte(c.must("explain", "deployments/broken", "-o", "json")), &x); err != nil {
		t.Fatal(err)
	}
	if x.Kind != "Deployment" || len(x.Pods) != 1 || x.Pods[0].Kind != "Pod" || len(x.Pods[0].Waits) == 0 {
		t.Errorf("%+v", x)
	}
	if got := c.must("trace", "deploy/web"); !strings.Contains(got, "deployment default/web") || strings.Count(got, "pod web-") != 2 {
		t.Errorf("trace:\n%s", got)
	}
}

// forbidPods makes a namespace with a quota of no pods.
func (c *cluster) forbidPods(namespace string) {
	c.t.Helper()
	c.kubectl("create", "namespace", namespace)
	_, err := c.client.CoreV1().ResourceQuotas(namespace).Create(c.t.Context(), &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{v1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) service(name string, selector map[string]string, target int32) {
	c.t.Helper()
	_, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Create(c.t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{Selector: selector, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(target)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

// explainsObject waits until the explanation of an object contains all of the texts.
func (c *cluster) explainsObject(object, namespace string, want []string) {
	c.t.Helper()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	text := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		text = c.must("explain", object, "-n", namespace)
		missing := false
		for _, w := range want {
			missing = missing || !strings.Contains(text, w)
		}
		if !missing {
			return
		}
	}
	c.t.Errorf("explain %s lacks one of %q:\n%s", object, want, text)
}
