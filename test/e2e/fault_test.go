package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kills returns how often `make kills` kills the node; a short form is part of all tests.
func kills(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("KILLS"), "6"))
	if err != nil {
		t.Fatalf("KILLS: %v", err)
	}
	return n
}

// Wherry is killed at random moments, every third time during its start, while pods come and go.
// After each restart everything must converge, and after the purge nothing may be left.
func TestKilledAtRandomMomentsConvergesAndLeaksNothing(t *testing.T) {
	t.Parallel()
	needsOwnRuntime(t)
	c := startCluster(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not for secrets
	const pods = 20
	for round := range kills(t) {
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() { c.churn(stop, round%3, pods) })                      // three rounds' pods fit
		time.Sleep(time.Duration(100+random.IntN(1500)) * time.Millisecond) // the moment is the experiment
		pid := c.pid()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		close(stop)
		wg.Wait()
		waitGone(t, pid)
		if round%3 == 2 {
			c.killedWhileItStarts(time.Duration(random.IntN(800)) * time.Millisecond)
		}
		c.up()
		c.settle()
	}
	list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		c.delete(list.Items[i].Name)
	}
	id := c.instanceID()
	c.must("down", "--purge")
	c.started = false
	for _, left := range leftovers(t, c, id) {
		t.Errorf("left behind: %s", left)
	}
}

// killedWhileItStarts kills a start after a while; the node may already be Ready by then.
func (c *cluster) killedWhileItStarts(after time.Duration) {
	c.t.Helper()
	up := c.command(c.t.Context(), append([]string{"up"}, c.flags...)...)
	var out strings.Builder
	up.Stdout, up.Stderr = &out, &out
	if err := up.Start(); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(after) // the moment is the experiment
	if err := up.Process.Kill(); err != nil {
		c.t.Fatalf("the start ended by itself: %v", err)
	}
	if err := up.Wait(); up.ProcessState.Exited() {
		c.t.Fatalf("the start ended by itself: %v\n%s", err, out.String())
	}
}

// churn creates and deletes pods until it is stopped; errors are expected, because the server is
// being killed.
func (c *cluster) churn(stop <-chan struct{}, round, n int) {
	pods := c.client.CoreV1().Pods(metav1.NamespaceDefault)
	ctx := c.t.Context()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		name := fmt.Sprintf("r%d-%d", round, i%n)
		_, err := pods.Create(ctx, func() *v1.Pod { p := busybox(name); p.Namespace = metav1.NamespaceDefault; return p }(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || i%3 == 0 {
			_ = pods.Delete(ctx, name, metav1.DeleteOptions{}) // see above
		}
		if err != nil {
			time.Sleep(5 * time.Millisecond) // no busy loop while the server is away
		}
	}
}

// settle waits until every pod is ready or gone.
func (c *cluster) settle() {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp != nil {
			c.await(p.Name, "gone", gone)
			continue
		}
		got := c.await(p.Name, "ready", ready)
		if n := got.Status.ContainerStatuses[0].RestartCount; n > 0 {
			c.t.Errorf("pod %s was restarted %d times:\n%s", p.Name, n, describe(got))
		}
		c.exec(p.Name, "true")
	}
}

// instanceID returns the ID in the names that are unique on the machine.
func (c *cluster) instanceID() string {
	c.t.Helper()
	out, err := exec.Command("sh", "-c", "printf %s "+c.data+" | sha256sum").Output()
	if err != nil {
		c.t.Fatal(err)
	}
	return string(out[:8])
}

// cgroupsOf lists the cgroups that bear an instance's name. Other cgroups come and go meanwhile.
func cgroupsOf(t testing.TB, id string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), "wherry-") && strings.Contains(path, id) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// leftovers lists what of an instance is still on the machine.
func leftovers(t testing.TB, c *cluster, id string) []string {
	t.Helper()
	var left []string
	note := func(what string, lines ...string) {
		for _, l := range lines {
			if l != "" {
				left = append(left, what+" "+l)
			}
		}
	}
	grep := func(command, needle string) []string {
		out, err := exec.Command("sh", "-c", command).Output()
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		var hits []string
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, needle) {
				hits = append(hits, strings.TrimSpace(line))
			}
		}
		return hits
	}
	note("mount", grep("cat /proc/self/mountinfo", c.data)...)
	note("mount", grep("cat /proc/self/mountinfo", c.run)...)
	note("link", grep("ip -o link", "wh-"+id)...)
	note("table", grep("nft list tables", id)...)
	note("cgroup", cgroupsOf(t, id)...)
	note("process", grep("ps -eo pid,args", c.run+"/")...)
	for _, dir := range []string{c.data, c.run} {
		if _, err := os.Stat(dir); err == nil {
			note("folder", dir)
		}
	}
	return left
}
