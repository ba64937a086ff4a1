package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serves is the script of a web server that says its pod's name, in its log too, and ends when told to.
const serves = `mkdir -p /www; hostname | tee /www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait`

// TestKubectlVerbs does to objects what people do with kubectl: one node, and a part for each group of verbs.
func TestKubectlVerbs(t *testing.T) {
	t.Parallel()
	c := twoImages(t)
	for _, part := range []struct {
		name string
		does func(*cluster)
	}{
		{"create", createsEachKind},
		{"rollout", rollsOutByHand},
		{"autoscale", scalesByHand},
		{"reach", reachesWorkloads},
		{"debug", debugsAPod},
		{"change", changesObjects},
		{"describe", describesEachKind}, // of what the others have left
		{"delete", deletesByCascade},
		{"drain", drainsWhenTheBudgetLets},
	} {
		t.Run(part.name, func(t *testing.T) {
			own := *c
			own.t = t
			part.does(&own)
		})
	}
}

// serving runs a Deployment of web servers.
func (c *cluster) serving(name string, replicas int) {
	c.t.Helper()
	c.kubectl("create", "deployment", name, "--image", firstImage, "--replicas", fmt.Sprint(replicas), "--port", "8080", "--", "sh", "-c", serves)
	c.rollsOut("deployment/"+name, "successfully rolled out")
}

// podsWith returns the pods of a Deployment that was made by kubectl create.
func (c *cluster) podsWith(name string) []v1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// field prints a field of an object.
func (c *cluster) field(what, path string) string {
	c.t.Helper()
	return c.kubectl("get", what, "-o", "jsonpath="+path)
}

func createsEachKind(c *cluster) {
	for _, args := range [][]string{
		{"deployment", "made", "--image", firstImage, "--replicas", "0"},
		{"job", "made", "--image", firstImage, "--", "true"},
		{"cronjob", "made", "--image", firstImage, "--schedule", "0 0 29 2 *", "--", "echo", "made"},
		{"service", "clusterip", "made", "--tcp", "80:8080"},
		{"service", "nodeport", "made-nodeport", "--tcp", "80:8080"},
		{"service", "loadbalancer", "made-balanced", "--tcp", "80:8080"},
		{"service", "externalname", "made-external", "--external-name", "example.com"},
		{"ingress", "made", "--rule", "made.example.com/*=made:80"},
		{"poddisruptionbudget", "made", "--selector", "app=made", "--max-unavailable", "1"},
		{"quota", "made", "--hard", "configmaps=100"},
		{"priorityclass", "made", "--value", "7"},
		{"serviceaccount", "made"},
		{"role", "made", "--verb", "get", "--resource", "pods"},
		{"rolebinding", "made", "--role", "made", "--serviceaccount", "default:made"},
		{"configmap", "made", "--from-literal", "a=b"},
		{"secret", "generic", "made", "--from-literal", "a=b"},
	} {
		if out := c.kubectl(append([]string{"create"}, args...)...); !strings.HasSuffix(out, " created\n") {
			c.t.Errorf("create %s says %q", strings.Join(args, " "), out)
		}
	}
	c.kubectl("wait", "job/made", "--for", "condition=Complete", "--timeout", fmt.Sprint(patience))
	c.kubectl("create", "job", "from-cron", "--from", "cronjob/made")
	c.prints("^made\n$", "logs", "job/from-cron")
	if got := c.kubectl("create", "token", "made"); strings.Count(got, ".") != 2 {
		c.t.Errorf("a token: %q", got)
	}
	can := func(verb string) string {
		out, _ := c.try("kubectl", "auth", "can-i", verb, "pods", "--as", "system:serviceaccount:default:made") // no is an error
		return out
	}
	if get, list := can("get"), can("list"); get != "yes\n" || list != "no\n" {
		c.t.Errorf("its account may get: %q, list: %q", get, list)
	}
	all := c.kubectl("get", "all")
	for _, want := range []string{"deployment.apps/made", "replicaset.apps/made-", "job.batch/made", "cronjob.batch/made", "service/made-balanced", "pod/from-cron-"} {
		if !strings.Contains(all, want) {
			c.t.Errorf("get all does not show %s:\n%s", want, all)
		}
	}
}

func rollsOutByHand(c *cluster) {
	c.serving("rolled", 2)
	done := func() { c.t.Helper(); c.rollsOut("deployment/rolled", "successfully rolled out") }
	c.kubectl("set", "env", "deployment/rolled", "COLOUR=blue")
	done()
	if got := c.kubectl("exec", "deployment/rolled", "--", "sh", "-c", "echo $COLOUR"); got != "blue\n" {
		c.t.Errorf("set env: %q", got)
	}
	c.kubectl("annotate", "deployment/rolled", "kubernetes.io/change-cause=smaller")
	c.kubectl("set", "resources", "deployment/rolled", "--requests", "cpu=10m,memory=8Mi", "--limits", "memory=32Mi")
	done()
	if got := c.field("deployment/rolled", "{.spec.template.spec.containers[0].resources}"); got != `{"limits":{"memory":"32Mi"},"requests":{"cpu":"10m","memory":"8Mi"}}` {
		c.t.Errorf("set resources: %s", got)
	}
	if got := c.kubectl("rollout", "history", "deployment/rolled"); !regexp.MustCompile(`(?m)^1 +<none>$`).MatchString(got) || !regexp.MustCompile(`(?m)^3 +smaller$`).MatchString(got) {
		c.t.Errorf("history: %s", got)
	}
	if got := c.kubectl("rollout", "history", "deployment/rolled", "--revision", "2"); !strings.Contains(got, "blue") || strings.Contains(got, "32Mi") {
		c.t.Errorf("revision 2: %s", got)
	}
	c.kubectl("rollout", "undo", "deployment/rolled", "--to-revision", "1")
	done()
	if got := c.field("deployment/rolled", "{.spec.template.spec.containers[0].env}"); got != "" {
		c.t.Errorf("undo to revision 1 leaves %s", got)
	}
	if _, err := c.try("kubectl", "rollout", "undo", "deployment/rolled", "--to-revision", "9"); err == nil || !strings.Contains(err.Error(), "unable to find specified revision 9 in history") {
		c.t.Errorf("undo to a revision that is not there: %v", err)
	}

	before := c.podsWith("rolled")
	c.kubectl("rollout", "restart", "deployment/rolled")
	done()
	c.until("all pods are new", func() bool {
		return !slices.ContainsFunc(c.podsWith("rolled"), func(p v1.Pod) bool {
			return slices.ContainsFunc(before, func(old v1.Pod) bool { return old.UID == p.UID })
		})
	})
	c.kubectl("rollout", "pause", "deployment/rolled")
	if _, err := c.try("kubectl", "rollout", "restart", "deployment/rolled"); err == nil || !strings.Contains(err.Error(), "can't restart paused deployment") {
		c.t.Errorf("a restart while it is paused: %v", err)
	}
	c.kubectl("rollout", "resume", "deployment/rolled")
	done()
}

func scalesByHand(c *cluster) {
	c.serving("sized", 1)
	if _, err := c.try("kubectl", "scale", "deployment/sized", "--replicas", "2", "--current-replicas", "5"); err == nil || !strings.Contains(err.Error(), "Expected replicas to be 5, was 1") {
		c.t.Errorf("scale of what has another size: %v", err)
	}
	c.kubectl("autoscale", "deployment", "sized", "--min", "2", "--max", "3", "--cpu", "80%")
	c.kubectl("wait", "deployment/sized", "--for", "jsonpath={.status.readyReplicas}=2", "--timeout", fmt.Sprint(patience))
	c.prints(`SuccessfulRescale .*New size: 2; reason: Current number of replicas below Spec.MinReplicas`, "events", "--for", "hpa/sized")
}

// reachesWorkloads looks at a workload's logs and ports as a whole.
func reachesWorkloads(c *cluster) {
	c.serving("reached", 2)
	var names []string
	for _, p := range c.podsWith("reached") {
		names = append(names, p.Name)
		c.prints(regexp.QuoteMeta("[pod/"+p.Name+"/busybox] "+p.Name+"\n"), "logs", "-l", "app=reached", "--prefix")
	}
	served := "^(" + strings.Join(names, "|") + ")\n$"
	c.prints(served, "logs", "deployment/reached")
	c.prints(served, "exec", "deployment/reached", "--", "hostname")

	c.kubectl("expose", "deployment", "reached", "--port", "80")
	if got := c.field("service/reached", "{.spec.ports[0].targetPort} {.spec.selector.app}"); got != "80 reached" {
		c.t.Errorf("expose: %s", got)
	}
	c.kubectl("delete", "service", "reached")
	c.kubectl("expose", "deployment", "reached", "--port", "80", "--target-port", "8080")
	c.until("the service has endpoints", func() bool {
		return c.kubectl("get", "endpointslice", "-l", "kubernetes.io/service-name=reached", "-o", "jsonpath={.items[0].endpoints[0].conditions.ready}") == "true"
	})
	for what, port := range map[string]string{"service/reached": ":80", "deployment/reached": ":8080"} {
		if got := c.forwarded(what, port); !regexp.MustCompile(served).MatchString(got) {
			c.t.Errorf("port-forward %s answers %q", what, got)
		}
	}
}

// forwarded gets / from a port that is forwarded for as long as the test runs.
func (c *cluster) forwarded(what, port string) string {
	c.t.Helper()
	line, err := bufio.NewReader(c.background(c.t.(*testing.T), "port-forward", what, port)).ReadString('\n')
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if err != nil || address == "" {
		c.t.Fatalf("port-forward %s says %q, %v", what, line, err)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(body)
}

func debugsAPod(c *cluster) {
	c.create(busybox("sick", script("echo 1 > /tmp/illness; "+loop)))
	c.await("sick", "ready", ready)
	c.kubectl("debug", "sick", "--image", secondImage, "--container", "doctor", "--target", "main", "--attach=false", "--", "sh", "-c",
		"cat /proc/*/root/tmp/illness 2>/dev/null; echo seen; "+loop)
	c.prints("^1\n(1\n)*seen\n$", "logs", "sick", "-c", "doctor")

	c.kubectl("debug", "sick", "--copy-to", "copy", "--set-image", "main="+secondImage, "--attach=false")
	c.await("copy", "ready", ready)
	if got := c.get("copy"); got.Spec.Containers[0].Image != secondImage || len(got.Spec.EphemeralContainers) != 0 {
		c.t.Errorf("the copy: %+v", got.Spec)
	}
	c.delete("copy")
	c.delete("sick")
}

func changesObjects(c *cluster) {
	c.serving("changed", 1)
	for kind, patch := range map[string]string{
		"json":      `[{"op": "add", "path": "/metadata/labels/json", "value": "yes"}]`,
		"merge":     `{"metadata": {"labels": {"merge": "yes"}}}`,
		"strategic": `{"metadata": {"labels": {"strategic": "yes"}}, "spec": {"template": {"spec": {"containers": [{"name": "busybox", "env": [{"name": "A", "value": "b"}]}]}}}}`,
	} {
		c.kubectl("patch", "deployment/changed", "--type", kind, "-p", patch)
	}
	c.kubectl("label", "deployment/changed", "app-", "label=yes")
	if got := c.field("deployment/changed", "{.metadata.labels}"); got != `{"json":"yes","label":"yes","merge":"yes","strategic":"yes"}` {
		c.t.Errorf("labels: %s", got)
	}
	if got := c.field("deployment/changed", "{.spec.template.spec.containers[*].image}"); got != firstImage {
		c.t.Errorf("a strategic patch by the container's name leaves %s", got)
	}
	if _, err := c.try("kubectl", "label", "deployment/changed", "label=no"); err == nil || !strings.Contains(err.Error(), "--overwrite is false") {
		c.t.Errorf("a label that is there: %v", err)
	}
	c.kubectl("annotate", "deployment/changed", "note=here")
	c.kubectl("wait", "deployment/changed", "--for", "jsonpath={.metadata.annotations.note}=here", "--timeout", fmt.Sprint(patience))
	c.kubectl("wait", "deployment/changed", "--for", "condition=Available", "--timeout", fmt.Sprint(patience))

	uid := c.field("deployment/changed", "{.metadata.uid}")
	manifest := c.file(c.kubectl("create", "deployment", "changed", "--image", secondImage, "--dry-run=client", "-o", "yaml", "--", "sh", "-c", loop))
	c.kubectl("replace", "--force", "-f", manifest)
	if got := c.field("deployment/changed", "{.metadata.uid} {.spec.template.spec.containers[0].image}"); strings.HasPrefix(got, uid) || !strings.HasSuffix(got, secondImage) {
		c.t.Errorf("replace --force: %s, and it was %s", got, uid)
	}
	c.rollsOut("deployment/changed", "successfully rolled out")
}

// describesEachKind describes all objects of every kind that can be listed; those to which things happen
// show their events.
func describesEachKind(c *cluster) {
	c.kubectl("create", "-f", c.file(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: made}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: made}, spec: {podSelector: {matchLabels: {app: made}}}}
---
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: made}, spec: {controller: example.com/made}}
---
{apiVersion: v1, kind: LimitRange, metadata: {name: made}, spec: {limits: [{type: Container, defaultRequest: {cpu: 1m}}]}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: made}, provisioner: example.com/made}
---
`+webOf("StatefulSet", "serviceName: web, replicas: 1")+`
---
`+strings.ReplaceAll(webOf("DaemonSet", "revisionHistoryLimit: 3"), "web", "daemon")))
	c.rollsOut("statefulset/web", "roll out complete")
	c.rollsOut("daemonset/daemon", "successfully rolled out")
	kinds := strings.Fields(c.kubectl("api-resources", "--verbs", "list,get", "-o", "name"))
	if len(kinds) < 50 {
		c.t.Errorf("only %d kinds: %v", len(kinds), kinds)
	}
	for _, kind := range kinds {
		if _, err := c.try("kubectl", "describe", kind, "-A"); err != nil {
			c.t.Errorf("describe %s: %v", kind, err)
		}
	}
	for what, want := range map[string]string{
		"deployment/rolled": "ScalingReplicaSet .*Scaled up replica set", "statefulset/web": "SuccessfulCreate .*Create Pod web-0 in StatefulSet web successful",
		"daemonset/daemon": "SuccessfulCreate .*Created pod: daemon-", "job/made": "SuccessfulCreate .*Created pod: made-", "hpa/sized": "SuccessfulRescale",
		"pod/web-0":               "Started .*Container started",
		"replicaset -l app=sized": "SuccessfulCreate .*Created pod: sized-",
	} {
		c.prints(`(?s)Events:.*`+want, append([]string{"describe"}, strings.Fields(what)...)...)
	}
}

func deletesByCascade(c *cluster) {
	c.serving("parent", 2)
	set := strings.TrimSpace(c.kubectl("get", "replicaset", "-l", "app=parent", "-o", "name"))
	c.kubectl("delete", "deployment", "parent", "--cascade=orphan")
	if got := c.field(set, "{.metadata.ownerReferences}"); got != "" {
		c.t.Errorf("an orphan has owners: %s", got)
	}
	if pods := c.podsWith("parent"); len(pods) != 2 || slices.ContainsFunc(pods, func(p v1.Pod) bool { return p.DeletionTimestamp != nil }) {
		c.t.Errorf("pods of the orphan: %+v", pods)
	}
	// A deployment of the same name takes the orphan in.
	c.serving("parent", 2)
	if got := strings.TrimSpace(c.kubectl("get", "replicaset", "-l", "app=parent", "-o", "name")); got != set {
		c.t.Errorf("replica sets: %s, want only %s", got, set)
	}
	c.kubectl("delete", "deployment", "parent", "--cascade=foreground", "--timeout", fmt.Sprint(patience))
	if pods := c.podsWith("parent"); len(pods) != 0 {
		c.t.Errorf("the parent went before its pods: %d", len(pods))
	}
	c.kubectl("wait", "replicaset", "-l", "app=parent", "--for", "delete", "--timeout", fmt.Sprint(patience))
}

// drainsWhenTheBudgetLets: a drain waits for its budget, and goes on when that lets it.
func drainsWhenTheBudgetLets(c *cluster) {
	c.serving("guarded", 2)
	c.kubectl("create", "poddisruptionbudget", "guarded", "--selector", "app=guarded", "--min-available", "1")
	c.kubectl("wait", "poddisruptionbudget/guarded", "--for", "jsonpath={.status.disruptionsAllowed}=1", "--timeout", fmt.Sprint(patience))
	node := c.podsWith("guarded")[0].Spec.NodeName
	drained := make(chan error, 1)
	go func() {
		_, err := c.try("kubectl", "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout", fmt.Sprint(patience))
		drained <- err
	}()
	// The other one's successor cannot run here, so the last one stays.
	c.kubectl("wait", "poddisruptionbudget/guarded", "--for", "jsonpath={.status.currentHealthy}=1", "--timeout", fmt.Sprint(patience))
	c.kubectl("wait", "poddisruptionbudget/guarded", "--for", "jsonpath={.status.disruptionsAllowed}=0", "--timeout", fmt.Sprint(patience))
	select {
	case err := <-drained:
		c.t.Fatalf("the drain did not wait for the budget: %v", err)
	default:
	}
	c.kubectl("patch", "poddisruptionbudget/guarded", "-p", `{"spec": {"minAvailable": 0}}`)
	if err := <-drained; err != nil {
		c.t.Errorf("drain: %v", err)
	}
	for _, p := range c.podsWith("guarded") {
		if p.Spec.NodeName != "" {
			c.t.Errorf("%s is still on the node", p.Name)
		}
	}
	c.kubectl("uncordon", node)
	c.rollsOut("deployment/guarded", "successfully rolled out")
}
