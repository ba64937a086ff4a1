package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// anyKubectl runs the machine's kubectl, which is older than the server: the kubeconfig must be
// enough for it.
func (c *cluster) anyKubectl(args ...string) string {
	c.t.Helper()
	path, err := exec.LookPath("kubectl")
	if err != nil {
		c.t.Skip("no kubectl on this machine: the one in wherry is tested everywhere else")
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.data, "kubeconfig"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

const manifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: applied}
data: {a: "1"}
`

func (c *cluster) file(text string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "m.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

func TestAPIAsKubectlUsesIt(t *testing.T) {
	c := startCluster(t)
	t.Run("explain", func(t *testing.T) {
		if out := c.anyKubectl("explain", "pod.spec.containers.livenessProbe.httpGet"); !strings.Contains(out, "KIND:") || !strings.Contains(out, "scheme") {
			t.Error(out)
		}
	})
	t.Run("api-resources", func(t *testing.T) {
		out := c.anyKubectl("api-resources")
		for _, r := range []string{"pods ", "nodes ", "namespaces ", "events ", "configmaps ", "secrets ", "serviceaccounts ", "services ", "endpoints ", "leases ",
			"runtimeclasses ", "priorityclasses ", "roles ", "rolebindings ", "clusterroles ", "clusterrolebindings ", "limitranges ", "resourcequotas ",
			"persistentvolumes ", "persistentvolumeclaims "} {
			if !strings.Contains("\n"+out, "\n"+r) {
				t.Errorf("%sis not served", r)
			}
		}
	})
	t.Run("apply", func(t *testing.T) {
		f := c.file(manifest)
		c.anyKubectl("apply", "-f", f)
		c.anyKubectl("apply", "--server-side", "--force-conflicts", "-f", f)
		out := c.anyKubectl("get", "configmap", "applied", "-o", "yaml", "--show-managed-fields")
		if !strings.Contains(out, "operation: Apply") || !strings.Contains(out, "f:a: {}") {
			t.Error(out)
		}
		conflict := exec.Command("kubectl", "apply", "--server-side", "--field-manager=other", "-f", c.file(strings.Replace(manifest, `"1"`, `"2"`, 1)))
		conflict.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.data, "kubeconfig"))
		if out, err := conflict.CombinedOutput(); err == nil || !strings.Contains(string(out), "conflict") {
			t.Errorf("another manager's change: %v %s", err, out)
		}
		c.anyKubectl("delete", "-f", f)
	})
	t.Run("tables", func(t *testing.T) {
		c.create(busybox("row"))
		c.await("row", "ready", ready)
		if out := c.anyKubectl("get", "pod", "row", "-o", "wide"); !strings.HasPrefix(out, "NAME   READY   STATUS    RESTARTS   AGE") || !strings.Contains(out, "1/1     Running   0") {
			t.Error(out)
		}
		if out := c.anyKubectl("get", "nodes"); !strings.Contains(out, "STATUS   ROLES") || !strings.Contains(out, "Ready") {
			t.Error(out)
		}
		c.anyKubectl("get", "namespaces,services,events,all")
		if out := c.anyKubectl("describe", "pod", "row"); !strings.Contains(out, "Started") {
			t.Error(out)
		}
		c.delete("row")
	})
	t.Run("auth", func(t *testing.T) {
		c.anyKubectl("auth", "can-i", "create", "pods")
		cmd := exec.Command("kubectl", "auth", "can-i", "get", "secrets", "--as=system:serviceaccount:default:default")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.data, "kubeconfig"))
		if out, err := cmd.CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "no") {
			t.Errorf("a service account without roles: %v %s", err, out)
		}
	})
	t.Run("namespace", func(t *testing.T) {
		c.anyKubectl("create", "namespace", "short")
		c.anyKubectl("-n", "short", "create", "configmap", "x")
		c.anyKubectl("-n", "short", "run", "p", "--image=docker.io/library/busybox:1.36", "--", "sh", "-c", loop)
		c.anyKubectl("-n", "short", "wait", "--for=condition=Ready", "pod/p", "--timeout="+patience.String())
		c.anyKubectl("delete", "namespace", "short", "--timeout="+patience.String())
	})
}

func TestBadPodsAreRefusedWithTheField(t *testing.T) {
	c := startCluster(t)
	for want, change := range map[string]func(*v1.Pod){
		"spec.containers: Required value":                      func(p *v1.Pod) { p.Spec.Containers = nil },
		`metadata.name: Invalid value: "Bad_Name"`:             func(p *v1.Pod) { p.Name = "Bad_Name" },
		"spec.containers[0].image: Required value":             func(p *v1.Pod) { p.Spec.Containers[0].Image = "" },
		"spec.restartPolicy: Unsupported value: \"Sometimes\"": func(p *v1.Pod) { p.Spec.RestartPolicy = "Sometimes" },
		"spec.containers[0].volumeMounts[0].name: Not found: \"missing\"": func(p *v1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "missing", MountPath: "/x"}}
		},
		"spec.containers[0].ports[0].containerPort: Invalid value: 70000":  func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 70000}} },
		"spec.containers[1].name: Duplicate value: \"main\"":               func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
		"spec.dnsPolicy: Unsupported value: \"Nope\"":                      func(p *v1.Pod) { p.Spec.DNSPolicy = "Nope" },
		"spec.containers[0].livenessProbe: Required value: must specify a": func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = &v1.Probe{} },
	} {
		_, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), busybox("bad", change), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "is invalid") {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestStaticPod(t *testing.T) {
	c := startCluster(t)
	dir := filepath.Join(c.data, "manifests")
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"static"},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"main","image":"docker.io/library/busybox:1.36","command":["sleep","10000"]}]}}`
	if err := os.WriteFile(filepath.Join(dir, "static.json"), []byte(pod), 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.await("static-n"+c.nodeNumber(), "ready", ready)
	if p.Annotations["kubernetes.io/config.source"] != "file" || p.Annotations["kubernetes.io/config.mirror"] == "" {
		t.Errorf("annotations: %v", p.Annotations)
	}
	if err := os.Remove(filepath.Join(dir, "static.json")); err != nil {
		t.Fatal(err)
	}
	c.await("static-n"+c.nodeNumber(), "gone", gone)
}

func (c *cluster) nodeNumber() string { return strings.TrimPrefix(c.flags[1], "n") }
