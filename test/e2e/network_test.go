package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/proxy"
	policies "wherry.dev/internal/proxy/policy"
	"wherry.dev/test/images"
)

// compile runs `go build` in a folder, as `make build` does: with memory to spare.
func compile(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOGC=off", "GOMEMLIMIT=2GiB")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", dir, err, out)
	}
}

// saveProgram builds a program of this repository into an image.
func saveProgram(t *testing.T, pkg, tag string) func(path string) error {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	compile(t, ".", "-ldflags=-s -w", "-o", bin, pkg)
	data, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	img, err := images.New(imageConfig(), images.Root{"program": {Data: data, Mode: 0o755}, "tmp": {Mode: os.ModeDir | 0o777}})
	if err != nil {
		t.Fatal(err)
	}
	return func(path string) error { return images.Save(path, img, tag) }
}

// awaitRights waits until somebody may do something in a namespace: a binding takes effect once the
// authorizer has seen it.
func (c *cluster) awaitRights(namespace, user, verb, resource string) {
	c.t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: resource},
	}}
	c.until(user+" may not "+verb+" "+resource, func() bool {
		got, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(c.t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		return got.Status.Allowed
	})
}

// A program that uses client-go's in-cluster configuration must work unchanged, within the rights
// that RBAC gives its service account.
func TestProgramInAPodReachesTheAPIServer(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.addImage("incluster.tar", saveProgram(t, "wherry.dev/test/images/incluster", "wherry.dev/incluster:1"))
	c.up()
	program := func(name string) *v1.Pod {
		return busybox(name, policy(v1.RestartPolicyNever), func(p *v1.Pod) {
			p.Spec.Containers[0].Image = "wherry.dev/incluster:1"
			p.Spec.Containers[0].Command = []string{"/program"}
			p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "NAMESPACE", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}
		})
	}
	c.create(program("no-rights"))
	c.await("no-rights", "Failed", phase(v1.PodFailed))
	if got := c.kubectl("logs", "no-rights"); !strings.Contains(got, "forbidden") || !strings.Contains(got, "server 37") {
		t.Errorf("without rights: %s", got)
	}
	c.kubectl("create", "rolebinding", "view", "--clusterrole=view", "--serviceaccount=default:default")
	c.awaitRights(v1.NamespaceDefault, "system:serviceaccount:default:default", "list", "pods")
	c.create(program("rights"))
	c.await("rights", "Succeeded", phase(v1.PodSucceeded))
	if got := c.kubectl("logs", "rights"); !strings.Contains(got, "pod rights on ") {
		t.Errorf("with rights: %s", got)
	}
}

func TestPodsReachEachOtherAndTheHost(t *testing.T) {
	c := startCluster(t)
	serve := script("mkdir -p /www; echo it works > /www/i; httpd -p 80 -h /www; touch /set; " + loop)
	c.create(busybox("server", serve, whenSet))
	c.create(busybox("client"))
	server := c.await("server", "ready", ready)
	client := c.await("client", "ready", ready)
	if got := c.exec("client", "wget", "-qO-", "http://"+server.Status.PodIP+"/i"); got != "it works\n" {
		t.Errorf("pod to pod: %q", got)
	}
	if got := c.exec("client", "ping", "-c1", "-W60", client.Status.HostIP); !strings.Contains(got, "1 packets received") {
		t.Errorf("pod to host: %s", got)
	}
	out, err := exec.Command("busybox", "wget", "-qO-", "http://"+server.Status.PodIP+"/i").Output()
	if err != nil || string(out) != "it works\n" {
		t.Errorf("host to pod: %q, %v", out, err)
	}
}

// With --proxy none, services and network policies are somebody else's: the node is Ready, pods reach each
// other at their own addresses, and of what an earlier run has left in the kernel nothing stays.
func TestNoProxy(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	id := c.instanceID()
	if got := nftTables(t, id); !strings.Contains(got, proxy.TableName(id)) {
		t.Errorf("with our proxy there are %q", got)
	}
	c.must("down")
	c.flags = append(c.flags, "--proxy", "none")
	c.up()
	serve := script("mkdir -p /www; echo it works > /www/i; httpd -p 80 -h /www; touch /set; " + loop)
	c.create(busybox("server", serve, whenSet))
	c.create(busybox("client"))
	server := c.await("server", "ready", ready)
	c.await("client", "ready", ready)
	c.kubectl("wait", "--for", "condition=Ready", "node", "--all", "--timeout", fmt.Sprint(patience))
	if got := c.exec("client", "wget", "-qO-", "http://"+server.Status.PodIP+"/i"); got != "it works\n" {
		t.Errorf("pod to pod: %q", got)
	}
	svc := c.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	got := nftTables(t, id)
	for what, absent := range map[string]string{"services": proxy.TableName(id), "policies": policies.TableName(id)} {
		if strings.Contains(got, absent) {
			t.Errorf("the table of %s is there: %q", what, got)
		}
	}
	rules, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", "wherry-"+id).CombinedOutput()
	if err != nil || strings.Contains(string(rules), svc) {
		t.Errorf("the bridge's own rules: %s, %v", rules, err)
	}
}

// nftTables returns the nftables tables of an instance.
func nftTables(t *testing.T, id string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	var ours []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, id) {
			ours = append(ours, strings.TrimSpace(line))
		}
	}
	return strings.Join(ours, ", ")
}
