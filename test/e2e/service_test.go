package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const hello = "mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"

// comesAndGoes takes the pods of the Deployment web away, and gives it one again: the service follows.
func (c *cluster) comesAndGoes(url string) {
	c.t.Helper()
	c.kubectl("scale", "deployment/web", "--replicas", "0")
	c.until("clients are refused", func() bool {
		out, err := c.try("kubectl", "exec", "client", "--", "wget", "-qO-", url+"/")
		return err != nil && strings.Contains(out+err.Error(), "refused")
	})
	c.kubectl("scale", "deployment/web", "--replicas", "1")
	c.rolledOut()
	c.until("the new pod answers", func() bool { return len(c.answers(url, 2)) == 1 })
}

// A Deployment behind a Service, as its clients see it: in pods, on the node, at the cluster's address
// and at the node's.
func TestService(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--replicas", "2", "--", "sh", "-c", hello)
	c.idle("client")
	ip, port := c.expose()
	c.rolledOut()
	url := "http://" + ip
	c.until("both pods answer at the cluster IP", func() bool { return len(c.answers(url, 12)) == 2 })
	nodeURL := fmt.Sprintf("http://%s:%d", c.nodeIP(), port)
	c.until("the node port answers", func() bool { return len(c.answers(nodeURL, 4)) > 0 })

	if got := c.kubectl("get", "--raw", "/api/v1/namespaces/default/services/http:web:80/proxy/"); !strings.HasPrefix(got, "web-") {
		t.Errorf("through the API server: %q", got)
	}
	c.changeService(func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeLoadBalancer })
	c.until("the load balancer has the node's address", func() bool {
		return c.kubectl("get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}") == c.nodeIP()
	})

	c.changeService(func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	c.until("the client stays with one pod", func() bool { return len(c.answers(url, 12)) == 1 })

	c.comesAndGoes(url)

	// The rules live on while nobody runs.
	pid := c.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	if got := c.nodeAnswers(ip); !strings.HasPrefix(got, "web-") {
		t.Errorf("while nobody runs: %q", got)
	}
	c.up()
	c.until("it answers after a restart", func() bool { return len(c.answers(url, 2)) == 1 })
}

// idle runs a pod that only waits.
func (c *cluster) idle(name string) {
	c.t.Helper()
	c.kubectl("run", name, "--image", firstImage, "--restart", "Never", "--", "sh", "-c", loop)
	c.kubectl("wait", "--for", "condition=Ready", "pod/"+name, "--timeout", fmt.Sprint(patience))
}

// expose makes a service of type NodePort for the Deployment, and returns its address and node port.
func (c *cluster) expose() (ip string, nodePort int32) {
	c.t.Helper()
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
		}},
	}
	svc, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Create(c.t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return svc.Spec.ClusterIP, svc.Spec.Ports[0].NodePort
}

func (c *cluster) changeService(change func(*v1.Service)) {
	c.t.Helper()
	c.until("the service is changed", func() bool {
		svc, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(c.t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		change(svc)
		_, err = c.client.CoreV1().Services(metav1.NamespaceDefault).Update(c.t.Context(), svc, metav1.UpdateOptions{})
		return err == nil
	})
}

// answers asks n times from the client, and returns who answered, and how often.
func (c *cluster) answers(url string, n int) map[string]int {
	c.t.Helper()
	out := map[string]int{}
	script := fmt.Sprintf("for i in $(seq %d); do timeout 5 wget -qO- %s/; done", n, url)
	text, err := c.try("kubectl", "exec", "client", "--", "sh", "-c", script)
	if err != nil {
		return nil
	}
	for name := range strings.FieldsSeq(text) {
		out[name]++
	}
	return out
}

// nodeAnswers returns what a process of the node gets from a service.
func (c *cluster) nodeAnswers(ip string) string {
	c.t.Helper()
	out, err := exec.CommandContext(c.t.Context(), "busybox", "wget", "-qO-", "http://"+ip+"/").Output()
	if err != nil {
		c.t.Error(err)
	}
	return string(out)
}

func (c *cluster) nodeIP() string {
	c.t.Helper()
	list, err := c.client.CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		c.t.Fatalf("%v, %v", list, err)
	}
	for _, a := range list.Items[0].Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			return a.Address
		}
	}
	c.t.Fatal("the node has no address")
	return ""
}
