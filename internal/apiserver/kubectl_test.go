package apiserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubectl runs the real kubectl, in a home of its own.
type kubectl struct {
	t    *testing.T
	home string
}

func newKubectl(t *testing.T, s *Server) *kubectl {
	t.Helper()
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("kubectl is not installed")
	}
	cfg := s.ClientConfig("admin", "system:masters")
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthority: cfg.CAFile}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: cfg.BearerToken}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	home := t.TempDir()
	if err := clientcmd.WriteToFile(*kubeconfig, filepath.Join(home, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return &kubectl{t, home}
}

// run returns what kubectl prints, and whether it succeeded.
func (k *kubectl) run(stdin string, args ...string) (string, bool) {
	k.t.Helper()
	cmd := exec.CommandContext(k.t.Context(), "kubectl", args...)
	cmd.Env = append(os.Environ(), "HOME="+k.home, "KUBECONFIG="+filepath.Join(k.home, "kubeconfig"))
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err == nil
}

// want runs kubectl, which must succeed and print a match of the pattern.
func (k *kubectl) want(pattern, stdin string, args ...string) {
	k.t.Helper()
	out, ok := k.run(stdin, args...)
	if !ok || !regexp.MustCompile(pattern).MatchString(out) {
		k.t.Errorf("kubectl %s: success %v, want %s in:\n%s", strings.Join(args, " "), ok, pattern, out)
	}
}

// refuse runs kubectl, which must fail and print a match of the pattern.
func (k *kubectl) refuse(pattern, stdin string, args ...string) {
	k.t.Helper()
	out, ok := k.run(stdin, args...)
	if ok || !regexp.MustCompile(pattern).MatchString(out) {
		k.t.Errorf("kubectl %s: success %v, want failure with %s in:\n%s", strings.Join(args, " "), ok, pattern, out)
	}
}

const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: web, image: "nginx:1.27", ports: [{containerPort: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
`

func TestKubectl(t *testing.T) {
	s := start(t)
	k := newKubectl(t, s)
	t.Run("objects", func(t *testing.T) { k.t = t; kubectlObjects(t, s, k) })
	t.Run("apply", func(t *testing.T) { k.t = t; kubectlApply(k) })
	t.Run("storage", func(t *testing.T) { k.t = t; kubectlStorage(k) })
	t.Run("workloads", func(t *testing.T) { k.t = t; kubectlWorkloads(k) })
	t.Run("custom resources", func(t *testing.T) { k.t = t; kubectlCustomResources(k) })
	t.Run("about", func(t *testing.T) { k.t = t; kubectlAbout(k) })
}

func kubectlObjects(t *testing.T, s *Server, k *kubectl) {
	k.want(`pod/one created`, "", "run", "one", "--image=busybox", "--labels=app=one", "--", "sleep", "9")
	k.want(`(?s)NAME +READY +STATUS +RESTARTS +AGE.*one +0/1 +Pending +0 +`, "", "get", "pods")
	k.want(`NAME +READY +STATUS +RESTARTS +AGE +IP +NODE +NOMINATED NODE +READINESS GATES`, "", "get", "pods", "-o", "wide")
	k.want(`(?s)Name: +one.*Labels: +app=one.*Image: +busybox.*QoS Class: +BestEffort`, "", "describe", "pod", "one")
	k.want(`pod/one labeled`, "", "label", "pod", "one", "tier=test")
	k.want(`pod/one annotated`, "", "annotate", "pod", "one", "note=x")
	k.want(`pod/one patched`, "", "patch", "pod", "one", "-p", `{"metadata":{"labels":{"x":"y"}}}`)
	k.want(`configmap/m created`, "", "create", "configmap", "m", "--from-literal=a=b")
	k.want(`secret/s created`, "", "create", "secret", "generic", "s", "--from-literal=a=b")
	k.want(`(?s)NAME +TYPE +DATA +AGE.*s +Opaque +1 +`, "", "get", "secret", "s")
	k.want(`serviceaccount/robot created`, "", "create", "serviceaccount", "robot")
	k.want(`^ey[\w-]+\.ey[\w-]+\.[\w-]+\s*$`, "", "create", "token", "robot")
	k.want(`namespace/other created`, "", "create", "namespace", "other")
	k.want(`(?s)kubernetes +ClusterIP +10.96.0.1 +<none> +443/TCP`, "", "get", "svc")
	k.refuse(`pods "absent" not found`, "", "get", "pod", "absent")
	k.refuse(`The Pod "two" is invalid: spec.containers\[0\].image: Required value`, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"two"},"spec":{"containers":[{"name":"c"}]}}`, "create", "-f", "-")
	k.refuse(`strict decoding error: unknown field "spec.colour"`, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"two"},"spec":{"colour":1,"containers":[{"name":"c","image":"i"}]}}`, "create", "-f", "-")
	ready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	if _, err := admin(t, s).CoreV1().Pods("default").Patch(t.Context(), "one", types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	k.want(`pod/one condition met`, "", "wait", "--for=condition=Ready", "pod/one", "--timeout=30s")
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "one.1", Namespace: "default"}, Reason: "Tested", Message: "it was", Type: "Normal", Count: 1,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "one"},
	}
	if _, err := admin(t, s).CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.want(`(?s)TYPE +REASON +OBJECT +MESSAGE.*Normal +Tested +pod/one +it was`, "", "get", "events")
	k.want(`Normal +Tested +Pod/one +it was`, "", "events", "--for", "pod/one", "--no-headers")
	k.want(`pod "one" deleted`, "", "delete", "pod", "one")
}

func kubectlApply(k *kubectl) {
	k.want(`(?s)pod/web created.*service/web created`, manifest, "apply", "-f", "-")
	k.want(`(?s)pod/web unchanged.*service/web unchanged`, manifest, "apply", "-f", "-")
	changed := strings.ReplaceAll(manifest, "nginx:1.27", "nginx:1.28")
	k.refuse(`\+ +- image: nginx:1.28|\+  - image: nginx:1.28`, changed, "diff", "-f", "-")
	k.want(`pod/web configured`, changed, "apply", "-f", "-")
	k.want(`pod/web serverside-applied`, changed, "apply", "--server-side", "--force-conflicts", "-f", "-")
	k.want(`pod/web serverside-applied \(server dry run\)`, changed, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
	k.want(`nginx:1.28`, "", "get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}")
	k.want(`(?s)pod "web" deleted.*service "web" deleted`, manifest, "delete", "-f", "-")
}

const replicaSet = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: r}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec: {containers: [{name: c, image: i}]}
`

func kubectlWorkloads(k *kubectl) {
	k.want(`deployment.apps/web created`, "", "create", "deployment", "web", "--image=nginx:1.27", "--replicas=2")
	k.want(`(?s)NAME +READY +UP-TO-DATE +AVAILABLE +AGE +CONTAINERS +IMAGES +SELECTOR\s+web +0/2 +0 +0 +\S+ +nginx +nginx:1.27 +app=web`, "", "get", "deploy", "-o", "wide")
	k.want(`deployment.apps/web scaled`, "", "scale", "deploy/web", "--replicas=5")
	k.want(`(?s)NAME +READY.*web +0/5 `, "", "get", "deployment", "web")
	k.want(`(?s)NAME +DESIRED +AVAILABLE.*web +5 +0`, "", "get", "deployment", "web", "--subresource=scale")
	k.want(`image updated`, "", "set", "image", "deploy/web", "nginx=nginx:1.28")
	k.want(`nginx:1.28`, "", "describe", "deploy", "web")
	k.want(`(?s)FIELD: maxSurge <IntOrString>`, "", "explain", "deploy.spec.strategy.rollingUpdate.maxSurge")
	k.refuse(`spec.template.metadata.labels: Invalid value: \{"app":"b"\}: .selector. does not match template .labels.`,
		strings.Replace(replicaSet, "labels: {app: a}", "labels: {app: b}", 1), "create", "-f", "-")
	k.want(`replicaset.apps/r serverside-applied`, replicaSet, "apply", "--server-side", "-f", "-")
	k.want(`(?s)replicaset.apps/r scaled`, "", "scale", "rs/r", "--replicas=0", "--current-replicas=1")
	k.want(`(?s)deployment.apps/web +0/5.*replicaset.apps/r +0 +0 +0 +\S+ +c +i +app=a`, "", "get", "deploy,rs", "-o", "wide")
	k.want(`(?s)deployment.apps/web.*replicaset.apps/r`, "", "get", "all")
	k.want(`job.batch/once created`, "", "create", "job", "once", "--image=busybox", "--", "true")
	k.want(`(?s)NAME +STATUS +COMPLETIONS +DURATION +AGE.*once +Running +0/1 +`, "", "get", "jobs")
	k.want(`^job.batch/once\n$`, "", "get", "jobs", "--field-selector=status.successful=0", "-o", "name")
	k.want(`(?s)batch.kubernetes.io/controller-uid=.*batch.kubernetes.io/job-name=once`, "", "describe", "job", "once")
	k.want(`cronjob.batch/often created`, "", "create", "cronjob", "often", "--image=busybox", "--schedule=*/5 * * * *")
	k.want(`job.batch/now created`, "", "create", "job", "now", "--from=cronjob/often")
	k.want(`(?s)NAME +SCHEDULE +TIMEZONE +SUSPEND +ACTIVE +LAST SCHEDULE +AGE.*often +\*/5 \* \* \* \* +<none> +False +0 +<none>`, "", "get", "cj")
	k.want(`(?s)job.batch "once" deleted.*job.batch "now" deleted|job.batch "now" deleted.*job.batch "once" deleted`, "", "delete", "job", "once", "now")
	k.want(`poddisruptionbudget.policy/calm created`, "", "create", "pdb", "calm", "--selector=app=web", "--min-available=50%")
	k.want(`(?s)NAME +MIN AVAILABLE +MAX UNAVAILABLE +ALLOWED DISRUPTIONS +AGE.*calm +50% +N/A +0 `, "", "get", "pdb")
	k.want(`horizontalpodautoscaler.autoscaling/web autoscaled`, "", "autoscale", "deployment", "web", "--min=1", "--max=3", "--cpu-percent=70")
	k.want(`(?s)NAME +REFERENCE +TARGETS +MINPODS +MAXPODS +REPLICAS +AGE.*web +Deployment/web +cpu: <unknown>/70% +1 +3 +0 `, "", "get", "hpa")
	k.want(`targetCPUUtilizationPercentage: 70`, "", "get", "horizontalpodautoscalers.v1.autoscaling", "web", "-o", "yaml")
	k.want(`ingress.networking.k8s.io/in created`, "", "create", "ingress", "in", "--rule=a.example/*=web:80")
	k.want(`(?s)NAME +CLASS +HOSTS +ADDRESS +PORTS +AGE.*in +<none> +a.example +80 `, "", "get", "ing")
	k.want(`(?s)kubernetes +10.96.0.0/12 `, "", "get", "servicecidr")
	k.want(`(?s)Warning: v1 ComponentStatus is deprecated in v1.19\+.*etcd-0 +Healthy +ok`, "", "get", "cs")
	k.want(`deployment.apps "web" deleted`, "", "delete", "deploy", "web", "--cascade=background")
	k.want(`replicaset.apps "r" deleted`, "", "delete", "rs", "r", "--cascade=orphan")
}

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, shortNames: [gd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: A thing for a purpose.
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1, description: How large it is.}
              color: {type: string, default: red, enum: [red, blue]}
          status: {type: object, properties: {phase: {type: string}, size: {type: integer}}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}, {name: Color, type: string, jsonPath: .spec.color, priority: 1}]
    selectableFields: [{jsonPath: .spec.color}]
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
`

// kubectlCustomResources is what people do with a kind of their own.
func kubectlCustomResources(k *kubectl) {
	gadget := func(spec string) string {
		return "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: one}\nspec: " + spec + "\n"
	}
	k.want(`customresourcedefinition.apiextensions.k8s.io/gadgets.example.com created`, gadgets, "apply", "-f", "-")
	k.want(`condition met`, "", "wait", "crd/gadgets.example.com", "--for=condition=Established", "--timeout=60s")
	k.want(`(?m)^gadgets +gd +example.com/v1 +true +Gadget`, "", "api-resources")
	k.want(`gadget.example.com/one created`, gadget("{size: 2}"), "apply", "-f", "-")
	k.want(`(?s)NAME +SIZE\s+one +2\s`, "", "get", "gd")
	k.want(`(?s)NAME +SIZE +COLOR\s+one +2 +red`, "", "get", "gadgets.v1.example.com", "-o", "wide")
	k.want(`gadget.example.com/one`, "", "get", "all")
	k.want(`gadget.example.com/one`, "", "get", "gd", "-o", "name", "--field-selector=spec.color=red")
	k.want(`No resources found`, "", "get", "gd", "--field-selector=spec.color=blue")
	k.want(`(?s)KIND: +Gadget.*FIELD: size <integer>.*How large it is.`, "", "explain", "gadget.spec.size")
	k.want(`(?s)Name: +one.*Kind: +Gadget.*Color: +red`, "", "describe", "gd", "one")
	k.refuse(`unknown field "spec.weight"`, gadget("{size: 2, weight: 1}"), "apply", "-f", "-")
	k.refuse(`(?s)spec.size: Invalid value.*should be greater than or equal to 1`, gadget("{size: 0}"), "apply", "-f", "-")
	k.refuse(`spec.color: Unsupported value: "green"`, "", "patch", "gd", "one", "--type=merge", "-p", `{"spec":{"color":"green"}}`)
	k.refuse(`application/strategic-merge-patch\+json is not supported`, "", "patch", "gd", "one", "--type=strategic", "-p", `{"spec":{"size":3}}`)
	k.want(`gadget.example.com/one patched`, "", "patch", "gd", "one", "--type=json", "-p", `[{"op":"replace","path":"/spec/color","value":"blue"}]`)
	k.want(`gadget.example.com/one patched`, "", "patch", "gd", "one", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Done","size":2}}`)
	k.want(`condition met`, "", "wait", "gd/one", "--for=jsonpath={.status.phase}=Done", "--timeout=60s")
	k.want(`gadget.example.com/one scaled`, "", "scale", "gd", "one", "--replicas=5")
	k.want(`^5$`, "", "get", "gd", "one", "-o", "jsonpath={.spec.size}")
	k.refuse(`conflict.*\.spec\.size`, gadget("{size: 7}"), "apply", "--server-side", "--field-manager=other", "-f", "-")
	k.want(`serverside-applied`, gadget("{size: 7}"), "apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-")
	k.want(`labeled`, "", "label", "gd", "one", "a=b")
	k.want(`gadget.example.com "one" deleted`, "", "delete", "gd", "-l", "a=b")
	k.want(`gadget.example.com/one created`, gadget("{size: 2}"), "create", "-f", "-")
	k.want(`customresourcedefinition.apiextensions.k8s.io "gadgets.example.com" deleted`, "", "delete", "crd", "gadgets.example.com")
	k.refuse(`the server doesn't have a resource type "gd"|could not find the requested resource`, "", "get", "gd")
}

func kubectlAbout(k *kubectl) {
	k.want(`Server Version: v1.37.2`, "", "version")
	k.want(`(?m)^pods +po +v1 +true +Pod`, "", "api-resources")
	k.want(`(?m)^events.k8s.io/v1$`, "", "api-versions")
	k.want(`(?s)KIND: +Pod.*FIELD: activeDeadlineSeconds <integer>`, "", "explain", "pod.spec.activeDeadlineSeconds")
	k.want(`^yes`, "", "auth", "can-i", "create", "pods")
	k.refuse(`^no`, "", "auth", "can-i", "create", "pods", "--as=nobody")
	k.want(`Username +admin`, "", "auth", "whoami")
	k.want(`^ok`, "", "get", "--raw", "/readyz")
	k.want(`apiserver_request_total`, "", "get", "--raw", "/metrics")
	k.want(`(?s)NAME +CREATED AT.*cluster-admin`, "", "get", "clusterroles")
	k.want(`(?s)NAME +VALUE +GLOBAL-DEFAULT +AGE.*system-node-critical +2000001000 +false`, "", "get", "priorityclasses")
}
