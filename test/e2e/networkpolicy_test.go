package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Network policies as pods see them: nobody, some by label, by the name of a port, and outwards; on the
// pods' addresses and through a service; and after a crash.
func TestNetworkPolicy(t *testing.T) {
	c := startCluster(t)
	c.webServer()
	c.idle("client")
	c.idle("stranger")
	c.expose()
	pod := c.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}")
	service := c.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	for _, who := range []string{"client", "stranger"} {
		c.reaches(who, pod+":8080", true)
		c.reaches(who, pod+":8081", true)
		c.reaches(who, service, true)
	}

	c.kubectl("apply", "-f", filepath.Join("..", "..", "examples", "networkpolicy.yaml"))
	c.reaches("client", pod+":8080", false)
	c.reaches("client", service, false)
	c.reaches("web", service, true) // itself
	c.kubectl("label", "pod", "client", "role=client")
	c.reaches("client", pod+":8080", true)
	c.reaches("client", service, true)
	c.reaches("client", pod+":8081", false)
	c.reaches("stranger", service, false)
	if got := c.nodeAnswers(service); got != "web\n" {
		t.Errorf("the node gets %q", got)
	}
	c.kubectl("wait", "--for", "condition=Ready", "pod/web", "--timeout", fmt.Sprint(patience)) // it is probed

	// A restart after a crash has the same rules.
	pid := c.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	c.up()
	c.reaches("stranger", pod+":8080", false)
	c.reaches("client", pod+":8080", true)

	c.kubectl("delete", "networkpolicy", "--all")
	c.reaches("stranger", pod+":8081", true)
}

// webServer runs a pod that answers on 8080, which has a name and is probed, and 8081.
func (c *cluster) webServer() {
	c.t.Helper()
	probe := v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("http")}}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{TerminationGracePeriodSeconds: new(int64(0)), Containers: []v1.Container{{
			Name: "web", Image: firstImage, Command: []string{"sh", "-c", strings.Replace(hello, "exec", "httpd -p 8081 -h /tmp/www;", 1)},
			Ports:          []v1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			ReadinessProbe: &v1.Probe{ProbeHandler: probe, PeriodSeconds: 1},
		}}},
	}
	if _, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("wait", "--for", "condition=Ready", "pod/web", "--timeout", fmt.Sprint(patience))
}

// reaches waits until a pod gets an answer from an address, or gets none.
func (c *cluster) reaches(from, address string, want bool) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s reaches %s: %v", from, address, want), func() bool {
		_, err := c.try("kubectl", "exec", from, "--", "timeout", "1", "wget", "-qO-", "http://"+address+"/")
		return (err == nil) == want
	})
}

// TestIsolatedFromTheFirstPacket: pods could connect until the enforcer had learned of their addresses.
func TestIsolatedFromTheFirstPacket(t *testing.T) {
	c := startCluster(t)
	c.webServer()
	url := "http://" + c.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}") + ":8080/"
	c.createPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "jail"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "prisoner"}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
	}})
	const through = 7
	connect := script(fmt.Sprintf("timeout 1 wget -qO- %s && exit %d; exit 0", url, through))
	jailed := func(p *v1.Pod) { p.Labels = map[string]string{"app": "prisoner"} }
	const pods = 40
	c.create(busybox("free", connect, policy(v1.RestartPolicyNever)))
	for i := range pods {
		c.create(busybox(fmt.Sprint("jailed-", i), connect, jailed, policy(v1.RestartPolicyNever)))
	}
	for i := range pods {
		c.await(fmt.Sprint("jailed-", i), "isolated, and succeeds", func(p *v1.Pod) bool {
			if p != nil && p.Status.Phase == v1.PodFailed {
				t.Fatalf("%s got through", p.Name)
			}
			return p != nil && p.Status.Phase == v1.PodSucceeded
		})
	}
	c.await("free", "free, and gets through", phase(v1.PodFailed))
}

func (c *cluster) createPolicy(np *networkingv1.NetworkPolicy) {
	c.t.Helper()
	if _, err := c.client.NetworkingV1().NetworkPolicies(metav1.NamespaceDefault).Create(c.t.Context(), np, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}
