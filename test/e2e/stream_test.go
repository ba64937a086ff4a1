package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// TestKubectlReachesIntoPods does what people do to look into a pod, over both protocols that
// kubectl speaks: WebSocket, and the older SPDY.
func TestKubectlReachesIntoPods(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("web", script("mkdir /www; echo hello from the web > /www/index.html; httpd -p 8080 -h /www; touch /set; echo one; echo two >&2; n=0; while true; do n=$((n+1)); echo tick $n; sleep 0.2; done"), whenSet))
	c.await("web", "ready", ready)
	for name, on := range map[string]string{"websocket": "true", "spdy": "false"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", on)
			t.Setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", on)
			c.forwardsPorts(t)
			c.attaches(t)
			c.copies(t)
		})
	}
	c.logFlags()
	c.followsALog(t)
	var sum stats.Summary
	out := c.kubectl("get", "--raw", "/api/v1/nodes/"+c.flags[1]+"/proxy/stats/summary")
	if err := json.Unmarshal([]byte(out), &sum); err != nil || len(sum.Pods) != 1 || len(sum.Pods[0].Containers) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	// what metrics-server and kubectl top read
	if p := sum.Pods[0]; p.PodRef.Name != "web" || p.Containers[0].CPU == nil || *p.Containers[0].CPU.UsageCoreNanoSeconds == 0 ||
		*p.Containers[0].Memory.WorkingSetBytes == 0 || p.Network == nil || p.EphemeralStorage == nil || *p.Containers[0].Logs.UsedBytes == 0 {
		t.Errorf("summary: %s", out)
	}
	resource := c.kubectl("get", "--raw", "/api/v1/nodes/"+c.flags[1]+"/proxy/metrics/resource")
	if !strings.Contains(resource, `pod_memory_working_set_bytes{namespace="default",pod="web"}`) {
		t.Errorf("resource metrics: %s", resource)
	}
	c.delete("web")
}

// background runs a kubectl command until the test ends, and returns its standard output.
func (c *cluster) background(t *testing.T, args ...string) io.Reader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := c.command(ctx, append([]string{"kubectl"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	timer := time.AfterFunc(patience, cancel)
	t.Cleanup(func() { timer.Stop() })
	return out
}

func (c *cluster) forwardsPorts(t *testing.T) {
	t.Helper()
	line, err := bufio.NewReader(c.background(t, "port-forward", "pod/web", ":8080")).ReadString('\n')
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindStringSubmatch(line)
	if err != nil || len(port) < 2 {
		t.Fatalf("port-forward says %q, %v", line, err)
	}
	for range 3 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("GET /index.html HTTP/1.0\r\n\r\n")); err != nil {
			t.Error(err)
		}
		answer, err := io.ReadAll(conn)
		_ = conn.Close()
		if err != nil || !strings.HasSuffix(string(answer), "\r\n\r\nhello from the web\n") {
			t.Errorf("%q, %v", answer, err)
		}
	}
}

func (c *cluster) attaches(t *testing.T) {
	t.Helper()
	in := bufio.NewReader(c.background(t, "attach", "web"))
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("attach: %v", err)
		}
		if strings.HasPrefix(line, "tick ") {
			return
		}
	}
}

func (c *cluster) copies(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	data := strings.Repeat("0123456789abcdef", 64<<10) // more than any buffer on the way
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	if err := os.WriteFile(there, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl("cp", there, "web:/tmp/file")
	c.kubectl("cp", "web:/tmp/file", back)
	if got, err := os.ReadFile(back); err != nil || string(got) != data {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(data), err)
	}
}

func (c *cluster) logFlags() {
	t := c.t
	t.Helper()
	if got := c.kubectl("logs", "web", "--limit-bytes=3"); len(got) != 3 {
		t.Errorf("limit: %q", got)
	}
	if got := c.kubectl("logs", "web", "--tail=1"); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "tick ") {
		t.Errorf("tail: %q", got)
	}
	if got := c.kubectl("logs", "web", "--timestamps", "--tail=1"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT[\d:.]+\S+ tick \d+\n$`).MatchString(got) {
		t.Errorf("timestamps: %q", got)
	}
	if got := c.kubectl("logs", "web", "--since-time=2100-01-01T00:00:00Z"); got != "" {
		t.Errorf("since: %q", got)
	}
	if _, err := c.try("kubectl", "logs", "web", "--previous"); err == nil || !strings.Contains(err.Error(), `previous terminated container "main" in pod "web" not found`) {
		t.Errorf("previous: %v", err)
	}
	out := c.kubectl("get", "--raw", "/api/v1/namespaces/default/pods/web/log?stream=Stderr")
	if out != "two\n" {
		t.Errorf("stderr alone: %q", out)
	}
}

func (c *cluster) followsALog(t *testing.T) {
	t.Helper()
	in := bufio.NewScanner(c.background(t, "logs", "-f", "web"))
	var last string
	for n := 0; n < 10 && in.Scan(); n++ {
		last = in.Text()
	}
	if !strings.HasPrefix(last, "tick ") {
		t.Errorf("follow: %q, %v", last, in.Err())
	}
}
