package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/test/registries"
)

const busybox = "registry.k8s.io/e2e-test-images/busybox:1.29-2"

// crictl is upstream's client, run against a node of our own.
type crictl struct {
	t    *testing.T
	path string
	n    *node
}

// newCrictl starts a node; without CRICTL=/path/to/crictl the test is skipped.
func newCrictl(t *testing.T) *crictl {
	t.Helper()
	path := os.Getenv("CRICTL")
	if path == "" {
		t.Skip("needs upstream's crictl: CRICTL=/path/to/crictl")
	}
	wherry, err := filepath.Abs("../../bin/wherry")
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode(t.Context(), wherry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return &crictl{t, path, n}
}

func (c *crictl) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), c.path, append([]string{"--config", os.DevNull, "-r", c.n.Endpoint, "-t", "30s"}, args...)...)
	cmd.Env = registries.WithoutProxies(os.Environ())
	return cmd
}

// run returns what a command that must succeed wrote to stdout.
func (c *crictl) run(args ...string) string {
	c.t.Helper()
	cmd := c.command(args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("crictl %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSuffix(string(out), "\n")
}

// want runs a command whose output must contain the texts.
func (c *crictl) want(args []string, texts ...string) {
	c.t.Helper()
	out := c.run(args...)
	for _, text := range texts {
		if !strings.Contains(out, text) {
			c.t.Errorf("crictl %s: no %q in\n%s", strings.Join(args, " "), text, out)
		}
	}
}

func (c *crictl) file(name string, v any) string {
	c.t.Helper()
	doc, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	path := filepath.Join(c.n.dir, name)
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

type object = map[string]any

func (c *crictl) podFile(name string) string {
	return c.file(name+".json", object{
		"metadata": object{"name": name, "namespace": "default", "uid": name + "-uid", "attempt": 1}, "hostname": name,
		"log_directory": filepath.Join(c.n.dir, "logs"), "labels": object{"app": name},
		"linux": object{}, // as crictl's users write it: all namespaces are the pod's
	})
}

func (c *crictl) containerFile(name, image string, command ...string) string {
	return c.file(name+".container.json", object{
		"metadata": object{"name": name}, "image": object{"image": image}, "command": command, "log_path": name + ".log",
		"stdin": true, "linux": object{},
	})
}

// TestCrictl is a user's session: every command that crictl has for the runtime.
func TestCrictl(t *testing.T) {
	c := newCrictl(t)
	events := c.start("events", "-o", "json")
	c.want([]string{"version"}, "RuntimeName:  wherry", "RuntimeApiVersion:  v1")
	c.images()
	pod := c.run("runp", c.podFile("web"))
	c.want([]string{"pods"}, pod[:13], "Ready", "web", "default", "(default)")
	c.want([]string{"pods", "--name", "web", "--state", "ready", "-q"}, pod)
	id := c.run("create", pod, c.containerFile("nginx", "registry.k8s.io/e2e-test-images/nginx:1.14-2"), c.podFile("web"))
	c.want([]string{"ps", "-a"}, id[:13], "Created", "nginx", pod[:13])
	c.run("start", id)
	c.want([]string{"ps"}, id[:13], "Running", "nginx")
	c.statuses(pod, id)
	c.streams(pod, id)
	c.measures(pod, id)
	c.want([]string{"update", "--memory", fmt.Sprint(64 << 20), id}, id)
	c.want([]string{"inspect", "-o", "go-template", "--template", "{{.status.resources.linux.memoryLimitInBytes}}", id}, fmt.Sprint(64<<20))
	c.want([]string{"stop", id}, id)
	c.want([]string{"ps", "-a"}, "Exited")
	c.want([]string{"rm", id}, id)
	c.want([]string{"stopp", pod}, "Stopped sandbox "+pod)
	c.want([]string{"pods"}, "NotReady")
	c.want([]string{"rmp", pod}, "Removed sandbox "+pod)
	if out := c.run("pods", "-q"); out != "" {
		t.Errorf("pods left: %s", out)
	}
	events.wait("CONTAINER_DELETED_EVENT")
	c.want([]string{"rmi", busybox}, "Deleted: "+busybox)
	c.once()
}

func (c *crictl) images() {
	c.want([]string{"pull", busybox}, "Image is up to date for sha256:")
	c.want([]string{"images"}, "registry.k8s.io/e2e-test-images/busybox", "1.29-2")
	c.want([]string{"inspecti", busybox}, `"repoTags"`, "registry.k8s.io/e2e-test-images/busybox@sha256:", `"imageSpec"`)
	c.want([]string{"imagefsinfo"}, "imageFilesystems", filepath.Join(c.n.Dir, "d", "store"))
	c.run("pull", "registry.k8s.io/e2e-test-images/nginx:1.14-2")
	out, err := c.command("pull", "registry.k8s.io/nosuch:1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "registry.k8s.io/nosuch:1") {
		c.t.Errorf("an image that is not there: %v: %s", err, out)
	}
}

// statuses checks what the verbose statuses carry, in the form that users of containerd and CRI-O
// know.
func (c *crictl) statuses(pod, id string) {
	c.want([]string{"info"}, `"RuntimeReady"`, `"NetworkReady"`, `"runtimeHandlers"`, `"config"`, `"stateDir"`, `"defaultRuntimeName"`, `"lastCNILoadStatus": "OK"`)
	c.want([]string{"runtime-config"}, "CGROUPFS")
	c.want([]string{"inspectp", pod}, `"state": "SANDBOX_READY"`, `"ip": "10.`, `"runtimeSpec"`, `"runtimeType"`, `"cniResult"`, `"netNamespaceClosed": false`, `"snapshotter"`, `"image"`)
	c.want([]string{"inspect", id}, `"sandboxID": "`+pod, `"pid": `, `"runtimeSpec": {`, `"runtimeType"`, `"config": {`, `"snapshotKey"`, `"snapshotter"`, `"removing": false`, `"state": "CONTAINER_RUNNING"`)
	var doc struct {
		Info struct {
			Pid         int
			RuntimeSpec struct{ Root struct{ Path string } }
		}
	}
	if err := json.Unmarshal([]byte(c.run("inspect", id)), &doc); err != nil {
		c.t.Fatal(err)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", doc.Info.Pid))
	if err != nil || string(comm) != "nginx\n" {
		c.t.Errorf("the container's process is %q, %v", comm, err)
	}
}

func (c *crictl) streams(pod, id string) {
	c.want([]string{"exec", "-s", id, "echo", "sync"}, "sync")
	c.want([]string{"exec", id, "echo", "streamed"}, "streamed")
	cmd := c.command("exec", "-i", id, "cat")
	cmd.Stdin = strings.NewReader("from stdin")
	if out, err := cmd.Output(); err != nil || string(out) != "from stdin" {
		c.t.Errorf("exec -i: %q, %v", out, err)
	}
	var exit *exec.ExitError
	if out, err := c.command("exec", id, "sh", "-c", "exit 7 ").CombinedOutput(); err == nil || !strings.Contains(string(out), "7") {
		c.t.Errorf("exec of a command that fails: %v %v: %s", err, exit, out)
	}
	c.portForward(pod)
	shell := c.run("create", pod, c.containerFile("shell", busybox, "sh"), c.podFile("web"))
	c.run("start", shell)
	attach := c.start("attach", "-i", shell)
	if _, err := io.WriteString(attach.in, "echo attached to $((40+2)) \n"); err != nil {
		c.t.Fatal(err)
	}
	attach.wait("attached to 42")
	c.want([]string{"logs", shell}, "attached to 42")
	follow := c.start("logs", "-f", "--tail", "1", shell)
	follow.wait("attached to 42")
	if _, err := io.WriteString(attach.in, "echo and again\n"); err != nil {
		c.t.Fatal(err)
	}
	follow.wait("and again")
	c.run("rm", "-f", shell)
}

func (c *crictl) portForward(pod string) {
	fwd := c.start("port-forward", pod, "0:80")
	line := fwd.wait("Forwarding from 127.0.0.1:")
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindStringSubmatch(line)
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://127.0.0.1:"+port[1], http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		c.t.Errorf("through the forwarded port: %v", err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if page, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(page), "It works!") {
		c.t.Errorf("through the forwarded port: %q, %v", page, err)
	}
}

func (c *crictl) measures(pod, id string) {
	c.want([]string{"stats"}, id[:13], "nginx")
	c.want([]string{"stats", "-o", "json", id}, `"usageCoreNanoSeconds"`, `"workingSetBytes"`, `"writableLayer"`)
	c.want([]string{"statsp"}, pod[:13], "web")
	c.want([]string{"statsp", "-o", "json", pod}, `"defaultInterface"`, `"eth0"`, `"processCount"`)
	c.want([]string{"metricdescs"}, "container_memory_working_set_bytes")
	c.want([]string{"metricsp"}, "container_cpu_usage_seconds_total", "container_network_receive_bytes_total")
}

// once is `crictl run`, which pulls, makes a pod and a container and starts it.
func (c *crictl) once() {
	id := c.run("run", c.containerFile("once", busybox, "sleep", "1000"), c.podFile("once"))
	c.want([]string{"ps", "--name", "once", "-q"}, id)
	c.want([]string{"pods", "-q"}, "")
	c.run("rmp", "-f", c.run("pods", "-q"))
}

// stream is a command that runs until it is stopped.
type stream struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
}

func (c *crictl) start(args ...string) *stream {
	c.t.Helper()
	cmd := c.command(args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		c.t.Fatal(err)
	}
	s := &stream{c.t, in, make(chan string, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			s.lines <- sc.Text()
		}
	}()
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGINT) // it may have ended already
		_ = cmd.Wait()
		_ = out.Close()
		<-done
	})
	return s
}

// wait returns the first line that contains the text.
func (s *stream) wait(text string) string {
	s.t.Helper()
	late := time.After(3 * time.Minute)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("it ended without %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-late:
			s.t.Fatalf("it does not say %q", text)
		}
	}
}
