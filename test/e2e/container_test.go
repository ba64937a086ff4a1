package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestKubectlReachesEveryContainer of a pod, each for as long as it runs: an init container, a
// sidecar, one that restarts, and one whose input is for a single attach.
func TestKubectlReachesEveryContainer(t *testing.T) {
	c := startCluster(t)
	c.createRestarting("again") // it backs off while the others are tested
	t.Run("while it starts", c.reachesWhatStarts)
	t.Run("stdin once", c.attachesOnce)
	t.Run("ports", c.forwardsSeveralPorts)
	t.Run("checkpoint", c.saysThatItMakesNoCheckpoints)
	t.Run("previous", c.showsThePreviousLog)
}

func (c *cluster) saysThatItMakesNoCheckpoints(t *testing.T) {
	needsOwnRuntime(t) // others may make some
	c.await("again", "running for the third time", restarted(2))
	_, err := c.try("kubectl", "create", "--raw", "/api/v1/nodes/"+c.flags[1]+"/proxy/checkpoint/default/again/main?timeout=5", "-f", "/dev/null")
	if err == nil || !strings.Contains(err.Error(), "checkpointing of default/again/main failed (checkpointing a container is not supported by this runtime)") {
		t.Errorf("checkpoint: %v", err)
	}
}

func restarted(times int32) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == times && ready(p)
	}
}

// talks returns a container that prints something five times a second until the file /tmp/end tells
// it to stop.
func talks(name string) v1.Container {
	return v1.Container{Name: name, Image: "docker.io/library/busybox:1.36", Command: []string{"sh", "-c",
		"n=0; until test -e /tmp/end; do n=$((n+1)); echo " + name + " $n; sleep 0.2; done"}}
}

func (c *cluster) reachesWhatStarts(t *testing.T) {
	c.create(busybox("starts", func(p *v1.Pod) {
		sidecar, init := talks("side"), talks("init")
		sidecar.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = []v1.Container{sidecar, init}
	}))
	c.await("starts", "initializing", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.InitContainerStatuses) == 2 && p.Status.InitContainerStatuses[1].State.Running != nil
	})
	for _, name := range []string{"init", "side"} {
		if got := c.kubectl("exec", "starts", "-c", name, "--", "sh", "-c", "echo $0 in $HOSTNAME", name); got != name+" in starts\n" {
			t.Errorf("exec in %s: %q", name, got)
		}
	}
	if _, err := c.try("kubectl", "exec", "starts", "-c", "main", "--", "true"); err == nil || !strings.Contains(err.Error(), `container not found ("main")`) {
		t.Errorf("exec in what does not run yet: %v", err)
	}
	if _, err := c.try("kubectl", "logs", "starts", "-c", "main"); err == nil ||
		!strings.Contains(err.Error(), `container "main" in pod "starts" is waiting to start: PodInitializing`) {
		t.Errorf("logs of what does not run yet: %v", err)
	}
	init := bufio.NewScanner(c.background(t, "logs", "-f", "starts", "-c", "init"))
	side := bufio.NewScanner(c.background(t, "logs", "-f", "starts", "-c", "side"))
	for want, in := range map[string]*bufio.Scanner{"init 3": init, "side 3": side} {
		for in.Scan() && in.Text() != want {
			continue
		}
		if in.Text() != want {
			t.Errorf("never %q: %q, %v", want, in.Text(), in.Err())
		}
	}
	c.kubectl("exec", "starts", "-c", "init", "--", "touch", "/tmp/end")
	for init.Scan() { // ends when the container does
		continue
	}
	c.await("starts", "ready", ready)
	last := side.Text()
	if !side.Scan() {
		t.Errorf("the sidecar's log ended after %q with the init container: %v", last, side.Err())
	}
	if got := c.exec("starts", "hostname"); got != "starts\n" {
		t.Errorf("exec in the first app container: %q", got)
	}
	c.delete("starts")
}

// createRestarting creates a pod that fails twice and then runs.
func (c *cluster) createRestarting(name string) {
	c.create(busybox(name, func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}, script("echo x >> /data/runs; n=$(wc -l < /data/runs); echo run $n; test $n = 3 || exit 1; "+loop)))
}

func (c *cluster) showsThePreviousLog(t *testing.T) {
	c.await("again", "running for the third time", restarted(2))
	c.awaitLog("run 3\n", "again", "--previous=false")
	if got := c.kubectl("logs", "again", "--previous"); got != "run 2\n" {
		t.Errorf("previous: %q", got)
	}
	c.delete("again")
}

// attachesOnce: when the first client leaves, the container's input ends.
func (c *cluster) attachesOnce(t *testing.T) {
	c.create(busybox("once", policy(v1.RestartPolicyNever), script("cat; echo end of input"), func(p *v1.Pod) {
		p.Spec.Containers[0].Stdin, p.Spec.Containers[0].StdinOnce = true, true
	}))
	c.await("once", "running", phase(v1.PodRunning))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := c.command(ctx, "kubectl", "attach", "-i", "once")
	cmd.Stdin = strings.NewReader("hello\n")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "hello\nend of input\n") {
		t.Errorf("attach: %v: %s", err, out)
	}
	c.await("once", "Succeeded", phase(v1.PodSucceeded))
	if got := c.kubectl("logs", "once"); got != "hello\nend of input\n" {
		t.Errorf("log: %q", got)
	}
	c.delete("once")
}

func (c *cluster) forwardsSeveralPorts(t *testing.T) {
	c.create(busybox("ports", script("for p in 1 2; do mkdir /$p; echo port $p > /$p/index.html; httpd -p 808$p -h /$p; done; touch /set; "+loop), whenSet))
	c.await("ports", "ready", ready)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := c.command(ctx, "kubectl", "port-forward", "pod/ports", ":8081", ":8082", ":8089")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it gave up, or was killed
	}()
	out := bufio.NewReader(r)
	local := map[string]string{}
	for len(local) < 3 {
		line, err := out.ReadString('\n')
		if m := regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> (\d+)`).FindStringSubmatch(line); m != nil {
			local[m[2]] = m[1]
		}
		if err != nil {
			t.Fatalf("port-forward says %q: %v", line, err)
		}
	}
	get := func(port string) string {
		conn, err := net.Dial("tcp", local[port])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
			return err.Error()
		}
		var answer bytes.Buffer
		if _, err := answer.ReadFrom(conn); err != nil {
			return err.Error()
		}
		return answer.String()
	}
	for _, p := range []string{"1", "2", "1"} {
		if got := get("808" + p); !strings.HasSuffix(got, "\r\n\r\nport "+p+"\n") {
			t.Errorf("port %s: %q", p, got)
		}
	}
	if got := get("8089"); strings.Contains(got, "HTTP") {
		t.Errorf("nobody listens, and says %q", got)
	}
	problems, err := io.ReadAll(out) // then kubectl gives up
	if err != nil {
		t.Error(err)
	}
	// The beginning comes from kubectl and the streaming server, the rest from containerd, or from
	// the socat that cri-dockerd runs.
	want := regexp.MustCompile(`error forwarding port 8089 to pod \S+, uid : .*` +
		`(failed to connect to localhost:8089 inside namespace .*connect: connection refused|socat.*8089.*: Connection refused)`)
	if got := string(problems); !want.MatchString(got) || !strings.Contains(got, "lost connection to pod") {
		t.Errorf("kubectl says %s", got)
	}
	c.delete("ports")
}
