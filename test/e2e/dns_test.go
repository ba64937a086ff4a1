package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/images"
)

// Names as pods see them: of services, of pods behind a headless one, of the world outside.
func TestNames(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--dns-resolver", worldOutside(t))
	c.up()
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--replicas", "2", "--", "sh", "-c", hello)
	c.kubectl("expose", "deployment/web", "--port", "80", "--target-port", "8080")
	headless := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "each"}, Spec: v1.ServiceSpec{
		ClusterIP: v1.ClusterIPNone, Selector: map[string]string{"app": "web"},
		Ports: []v1.ServicePort{{Name: "http", Port: 8080, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), headless, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.kubectl("create", "service", "externalname", "away", "--external-name", "www.example.com")
	c.idle("client")
	c.rolledOut()

	c.until("the service answers under its name", func() bool {
		out, err := c.try("kubectl", "exec", "client", "--", "wget", "-qO-", "http://web/")
		return err == nil && strings.HasPrefix(out, "web-")
	})
	ip := c.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	for name, want := range map[string]string{
		"web.default.svc.cluster.local":        "Address: " + ip + "\n",
		"kubernetes.default.svc.cluster.local": "Address: " + c.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}") + "\n",
		"www.example.com":                      "Address: 192.0.2.80\n",
		"away.default.svc.cluster.local":       "Address: 192.0.2.80\n",
		ip:                                     "web.default.svc.cluster.local\n",
	} {
		if got := c.exec("client", "sh", "-c", "nslookup "+name+" || true"); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for _, pod := range c.webPods() {
		if got := c.exec("client", "sh", "-c", "nslookup each.default.svc.cluster.local || true"); !strings.Contains(got, pod.Status.PodIP) {
			t.Errorf("the headless service has no %s: %s", pod.Status.PodIP, got)
		}
	}
	if out, err := c.try("kubectl", "exec", "client", "--", "nslookup", "nobody.default.svc.cluster.local"); err == nil || !strings.Contains(out+err.Error(), "NXDOMAIN") {
		t.Errorf("a name that does not exist: %s, %v", out, err)
	}

	pid := c.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	c.up()
	c.until("names are answered after a restart", func() bool {
		out, err := c.try("kubectl", "exec", "client", "--", "nslookup", "web.default.svc.cluster.local")
		return err == nil && strings.Contains(out, ip)
	})
}

// worldOutside runs a DNS server on loopback that knows www.example.com.
func worldOutside(t *testing.T) string {
	t.Helper()
	pc, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == "www.example.com." && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "www.example.com.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 80)}}
		} else if q.Question[0].Name != "www.example.com." {
			m.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(m) // the client asks again
	})}
	started, done := make(chan struct{}), make(chan error, 1)
	server.NotifyStartedFunc = func() { close(started) }
	go func() { done <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return pc.LocalAddr().String()
}

// Without a DNS of ours there is no service for it, and pods get the node's resolv.conf.
func TestNoDNS(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--dns", "none")
	c.up()
	c.idle("client")
	if out, err := c.try("kubectl", "get", "service", "-n", "kube-system", "kube-dns"); err == nil {
		t.Errorf("there is a service: %s", out)
	}
	host, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Skip("the machine has no resolv.conf")
	}
	got := c.exec("client", "cat", "/etc/resolv.conf")
	for line := range strings.Lines(string(host)) {
		if strings.HasPrefix(line, "nameserver") && !strings.Contains(got, strings.TrimSpace(line)) {
			t.Errorf("%q is missing in %q", line, got)
		}
	}
}

// The example that `make up` ends with.
func TestExampleWeb(t *testing.T) {
	c := startCluster(t)
	c.kubectl("apply", "-f", example("web.yaml"))
	c.until("the client has an answer", func() bool {
		out, err := c.try("kubectl", "logs", "client")
		return err == nil && strings.HasPrefix(out, "web-")
	})
	way := c.must("trace", "deploy/web")
	for _, row := range []string{"deployment web ", "replicaset web-", "pod web-", "service web "} {
		if !strings.Contains(way, row) {
			t.Errorf("no %q on the way to the answer:\n%s", row, way)
		}
	}
	// In the picture a short step may lie under its neighbour.
	steps := c.must("trace", "deploy/web", "-o", "json")
	for _, step := range []string{`"endpointslice: `, `"proxy: `, `"dns: `} {
		if !strings.Contains(steps, step) {
			t.Errorf("no %s on the way to the answer:\n%s", step, steps)
		}
	}
	c.kubectl("delete", "-f", example("web.yaml"), "--timeout", fmt.Sprint(patience))
}

// example is the path of a file in examples.
func example(name string) string { return filepath.Join("..", "..", "examples", name) }
