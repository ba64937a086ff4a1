package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/test/bench/applications"
	"wherry.dev/test/bench/inside"
)

// node is the instance under measurement.
type node struct {
	wherry, data, run string
	flags             []string
	client            kubernetes.Interface

	mu      sync.Mutex
	seen    map[string]*seen
	changed chan struct{} // closed and replaced at every change of seen
	stop    context.CancelFunc
}

// seen is when a watch reported a pod's states.
type seen struct {
	running, ready, gone, died, back time.Time
	armed                            bool // deaths count from now on
	succeeded                        time.Time
}

func newNode(wherry, dir string) (*node, error) {
	ports := make([]string, 2)
	for i := range ports {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			return nil, err
		}
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("not TCP: %v", l.Addr())
		}
		ports[i] = strconv.Itoa(addr.Port)
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return &node{
		wherry: wherry, data: filepath.Join(dir, "d"), run: filepath.Join(dir, "r"),
		flags: []string{
			"--node-name", "bench", "--secure-port", ports[0], "--kubelet-port", ports[1],
			"--pod-cidr", "10.251.0.0/24", "--service-cidr", "10.151.0.0/24",
		},
		seen: map[string]*seen{}, changed: make(chan struct{}),
	}, nil
}

func (n *node) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, n.wherry, args...)
	cmd.Env = append(os.Environ(), "WHERRY_DATA_DIR="+n.data, "WHERRY_RUN_DIR="+n.run)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("wherry %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// up starts the node and returns how long that took, in ms.
func (n *node) up(ctx context.Context) (float64, error) {
	start := time.Now()
	if err := n.command(ctx, append([]string{"up", "--detach"}, n.flags...)...); err != nil {
		return 0, err
	}
	took := ms(start, time.Now())
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(n.data, "kubeconfig"))
	if err != nil {
		return 0, err
	}
	if n.client, err = applications.Client(cfg); err != nil {
		return 0, err
	}
	return took, n.watch(ctx)
}

func ms(a, b time.Time) float64 { return float64(b.Sub(a).Microseconds()) / 1000 }

// watch notes when pods reach each state.
func (n *node) watch(ctx context.Context) error {
	ctx, n.stop = context.WithCancel(ctx)
	f := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(metav1.NamespaceDefault))
	reg, err := f.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.note(o, false) },
		UpdateFunc: func(_, o any) { n.note(o, false) },
		DeleteFunc: func(o any) { n.note(o, true) },
	})
	if err != nil {
		return err
	}
	f.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		return context.Cause(ctx)
	}
	return nil
}

func (n *node) note(o any, gone bool) {
	now := time.Now()
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	p, ok := o.(*v1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.seen[p.Name]
	if s == nil {
		s = &seen{}
		n.seen[p.Name] = s
	}
	first := func(at *time.Time, is bool) {
		if is && at.IsZero() {
			*at = now
		}
	}
	up := false
	for _, c := range p.Status.ContainerStatuses {
		up = up || c.State.Running != nil
		first(&s.died, s.armed && (c.State.Running == nil || c.RestartCount > 0))
		first(&s.back, s.armed && c.State.Running != nil && c.RestartCount > 0)
	}
	first(&s.running, p.Status.Phase == v1.PodRunning && up)
	for _, c := range p.Status.Conditions {
		first(&s.ready, c.Type == v1.PodReady && c.Status == v1.ConditionTrue)
	}
	first(&s.succeeded, p.Status.Phase == v1.PodSucceeded)
	first(&s.gone, gone)
	close(n.changed)
	n.changed = make(chan struct{})
}

// await waits until every pod is as wanted.
func (n *node) await(ctx context.Context, what string, names []string, ok func(*seen) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		n.mu.Lock()
		missing := ""
		for _, name := range names {
			if s := n.seen[name]; s == nil || !ok(s) {
				missing = name
			}
		}
		changed := n.changed
		n.mu.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("pod %s is not %s: %w", missing, what, ctx.Err())
		}
	}
}

func (n *node) create(ctx context.Context, name string, with ...func(*v1.Pod)) error {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Image: "docker.io/library/busybox:1.36", ImagePullPolicy: v1.PullIfNotPresent,
			Command: inside.Loop(name),
		}}},
	}
	for _, f := range with {
		f(pod)
	}
	_, err := n.client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// remove deletes pods and returns how long each took to disappear, in ms.
func (n *node) remove(ctx context.Context, names ...string) ([]float64, error) {
	start := map[string]time.Time{}
	for _, name := range names {
		start[name] = time.Now()
		if err := n.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
	}
	if err := n.await(ctx, "gone", names, func(s *seen) bool { return !s.gone.IsZero() }); err != nil {
		return nil, err
	}
	var out []float64
	for _, name := range names {
		out = append(out, ms(start[name], n.of(name).gone))
	}
	return out, nil
}

func (n *node) of(name string) seen {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *n.seen[name]
}

func (n *node) arm(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[name].armed = true
}
