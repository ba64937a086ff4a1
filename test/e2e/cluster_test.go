// Package e2e drives bin/wherry as a user would: real etcd, crun, namespaces,
// overlayfs and nftables, through kubectl and client-go.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"wherry.dev/test/images"
	"wherry.dev/test/panics"
	"wherry.dev/test/runtimes"
)

// patience bounds every wait; a slow machine is no reason to fail. Who writes a test has less of it: E2E_PATIENCE=20s.
var patience = cmp.Or(given(os.Getenv("E2E_PATIENCE")), 5*time.Minute)

func given(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

func wherryPath(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/wherry")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; `make build` makes it", err)
	}
	return path
}

// cluster is one instance of Wherry, owned by a test.
type cluster struct {
	t       testing.TB
	wherry  string
	data    string
	run     string
	flags   []string
	client  kubernetes.Interface
	started bool
	// files, if not 0, is how many files its processes may open.
	files int
	// calm is when the last disk shortage that the test waited for ended.
	calm metav1.Time
	// other is the runtime to use instead of our own, if the environment names one.
	other *runtimes.Runtime
}

var instances atomic.Int32

// newCluster chooses folders, ports and networks that no other instance uses.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests need root")
	}
	n := instances.Add(1)
	// not t.TempDir, whose long names leave no room for a socket's path
	dir, err := os.MkdirTemp("", "wherry-e2e-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("the instance's folder cannot be removed: %v", err)
		}
	})
	c := &cluster{t: t, wherry: wherryPath(t), data: filepath.Join(dir, "d"), run: filepath.Join(dir, "r")}
	net3 := (os.Getpid() + int(n)) % 250
	c.flags = []string{
		"--node-name", fmt.Sprintf("n%d", n),
		"--secure-port", strconv.Itoa(freePort(t)), "--kubelet-port", strconv.Itoa(freePort(t)),
		"--pod-cidr", fmt.Sprintf("10.%d.%d.0/24", 200+n%40, net3), "--service-cidr", fmt.Sprintf("10.%d.%d.0/24", 240+n%16, net3),
	}
	if o, ok := runtimes.Chosen(); ok {
		c.use(o, dir)
	}
	t.Cleanup(func() {
		if err := panics.None(filepath.Join(c.data, "log", "wherry.log*"), filepath.Join(dir, "*.log")); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			c.dumpLog()
		}
		c.purge()
	})
	return c
}

// startCluster starts an instance with the busybox image.
func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	return c
}

// portsAsked counts the ports that were handed out, from a random one on: each is different.
var portsAsked = sync.OnceValue(func() *atomic.Int32 {
	n := new(atomic.Int32)
	n.Store(rand.Int32N(15000)) //nolint:gosec // no secret
	return n
})

// freePort returns a port that is not in use, below those that the kernel gives to clients: a
// client could take one of those before the server does.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 15000 + int(portsAsked().Add(1))%15000
		l, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("no port is free")
	return 0
}

// use puts the node's pods on a runtime of somebody else's.
func (c *cluster) use(o runtimes.Other, dir string) {
	c.t.Helper()
	archive := filepath.Join(dir, "pause.tar")
	if err := savePause(archive); err != nil {
		c.t.Fatal(err)
	}
	var err error
	if c.other, err = o.Start(c.t.Context(), pauseImage, archive); err != nil {
		c.t.Fatal(err)
	}
	c.flags = append(c.flags, "--container-runtime-endpoint", c.other.Endpoint)
	c.t.Cleanup(func() {
		if c.t.Failed() {
			log := c.other.Log()
			c.t.Logf("%s:\n%s", c.other.Name, log[max(0, len(log)-8000):])
		}
		if err := c.other.Close(context.Background()); err != nil {
			c.t.Errorf("%s: %v", c.other.Name, err)
		}
	})
}

const pauseImage = "wherry.dev/pause:1"

func savePause(path string) error {
	root, err := images.Busybox()
	if err != nil {
		return err
	}
	cfg := imageConfig()
	cfg.Entrypoint = []string{"sh", "-c", loop} // it ends when it is told to
	img, err := images.New(cfg, root)
	if err != nil {
		return err
	}
	return images.Save(path, img, pauseImage)
}

// needsOwnRuntime skips tests of Wherry's own runtime and its images.
func needsOwnRuntime(t *testing.T) {
	t.Helper()
	if o, ok := runtimes.Chosen(); ok {
		t.Skipf("about Wherry's own container runtime, and $%s is another", o.Env)
	}
}

// addImage gives the node an image before it starts.
func (c *cluster) addImage(file string, save func(path string) error) {
	c.t.Helper()
	path := filepath.Join(c.data, "images", file)
	if err := save(path); err != nil {
		c.t.Fatal(err)
	}
	if c.other != nil {
		if err := c.other.Import(c.t.Context(), path); err != nil {
			c.t.Fatal(err)
		}
	}
}

// command returns a wherry command for this instance.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.wherry, args...)
	if c.files > 0 {
		cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, c.files), c.wherry}, args...)...)
	}
	// kubectl remembers discovery by address for hours, and another test's server may have had this port
	cache := filepath.Join(filepath.Dir(c.data), "kubecache")
	cmd.Env = append(os.Environ(), "WHERRY_DATA_DIR="+c.data, "WHERRY_RUN_DIR="+c.run, "KUBECONFIG=", "KUBECACHEDIR="+cache)
	switch args[0] {
	case "kubectl", "down", "image", "explain": // brief, and a third of their CPU would be the collector's
		cmd.Env = append(cmd.Env, "GOGC=off", "GOMEMLIMIT=512MiB")
	}
	return cmd
}

// try runs a wherry command and returns what it printed.
func (c *cluster) try(args ...string) (stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := c.command(ctx, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("wherry %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	return c.must(append([]string{"kubectl"}, args...)...)
}

// up starts the daemon and returns when the node is Ready.
func (c *cluster) up() {
	c.t.Helper()
	c.started = true
	c.must(append([]string{"up", "--detach"}, c.flags...)...)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.data, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	cfg.QPS = -1
	if c.client, err = kubernetes.NewForConfig(cfg); err != nil {
		c.t.Fatal(err)
	}
}

// pid returns the daemon's PID.
func (c *cluster) pid() int {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.data, "lock"))
	if err != nil {
		c.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		c.t.Fatal(err)
	}
	return pid
}

func (c *cluster) purge() {
	if !c.started {
		return
	}
	if _, err := c.try("down", "--purge"); err != nil {
		c.t.Errorf("down --purge: %v", err)
	}
}

func (c *cluster) dumpLog() {
	log, err := os.ReadFile(filepath.Join(c.data, "log", "wherry.log"))
	if err != nil {
		return // purged with the rest, or never written
	}
	c.t.Logf("the daemon's log ends with:\n%s", log[max(0, len(log)-8000):])
}

func (c *cluster) create(p *v1.Pod) *v1.Pod {
	c.t.Helper()
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	out, err := c.client.CoreV1().Pods(p.Namespace).Create(c.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) get(name string) *v1.Pod {
	c.t.Helper()
	p, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// await watches a pod until it is as wanted, and returns it. A nil pod means that it is gone.
func (c *cluster) await(name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	sel := fields.OneTermEqualSelector("metadata.name", name).String()
	pods := c.client.CoreV1().Pods(metav1.NamespaceDefault)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel
			return pods.Watch(ctx, o)
		},
	}
	var last *v1.Pod
	_, err := watchtools.UntilWithSync(ctx, lw, &v1.Pod{}, func(s cache.Store) (bool, error) {
		return len(s.List()) == 0 && ok(nil), nil
	}, func(e watch.Event) (bool, error) {
		p, isPod := e.Object.(*v1.Pod)
		if !isPod {
			return false, apierrors.FromObject(e.Object)
		}
		if last = p; e.Type == watch.Deleted {
			last = nil
		}
		return ok(last), nil
	})
	if err != nil {
		c.t.Fatalf("pod %s is not %s: %v\n%s", name, what, err, describe(last))
	}
	return last
}

func describe(p *v1.Pod) string {
	if p == nil {
		return "(no pod)"
	}
	out := string(p.Status.Phase)
	for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		out += fmt.Sprintf("\n%s: ready %v, restarts %d, state %+v, last %+v", s.Name, s.Ready, s.RestartCount, s.State, s.LastTerminationState)
	}
	for _, cond := range p.Status.Conditions {
		out += fmt.Sprintf("\n%s=%s %s %s", cond.Type, cond.Status, cond.Reason, cond.Message)
	}
	return out
}

func ready(p *v1.Pod) bool {
	if p == nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func gone(p *v1.Pod) bool { return p == nil }

func phase(want v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p != nil && p.Status.Phase == want }
}

// delete deletes a pod and waits until it is gone.
func (c *cluster) delete(name string) {
	c.t.Helper()
	err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(c.t.Context(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	c.await(name, "gone", gone)
}

// exec runs a command in a pod.
func (c *cluster) exec(pod string, command ...string) string {
	c.t.Helper()
	return c.kubectl(append([]string{"exec", pod, "--"}, command...)...)
}

const loop = `trap 'exit 0' TERM; while true; do sleep 1000 & wait $!; done`

// busybox returns a pod that runs until it is told to stop.
func busybox(name string, change ...func(*v1.Pod)) *v1.Pod {
	grace := int64(5)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []v1.Container{{Name: "main", Image: "docker.io/library/busybox:1.36", Command: []string{"sh", "-c", loop}}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// script replaces the command that the pod's container runs.
func script(s string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Command = []string{"sh", "-c", s} }
}

func policy(r v1.RestartPolicy) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.RestartPolicy = r }
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// imageConfig is the configuration of the images that the tests make.
func imageConfig() imagev1.Config {
	return imagev1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/bin:/usr/bin"}}
}
