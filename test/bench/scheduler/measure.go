package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/test/bench/servers"
)

const (
	classUrgent = "urgent"
	clients     = 16
	patience    = 10 * time.Minute
)

// scheduler is a program that takes kube-scheduler's flags.
type scheduler struct {
	binary string
	args   []string
}

// bench is one scheduler in one case.
type bench struct {
	testCase
	client kubernetes.Interface

	mu      sync.Mutex
	created map[string]time.Time // by namespace and name: when the request was made
	bound   map[string]time.Time
	left    int // measured pods that have no node yet
	done    chan struct{}
}

// measure runs a case on a fresh API server, and removes all of it.
func (c testCase) measure(ctx context.Context, o options, s scheduler) (_ figures, err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-bench-scheduler-")
	if err != nil {
		return figures{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := servers.Prepare(dir); err != nil {
		return figures{}, err
	}
	wherry, err := filepath.Abs(o.wherry)
	if err != nil {
		return figures{}, err
	}
	api, err := servers.Wherry(wherry)(ctx, dir)
	if err != nil {
		return figures{}, err
	}
	defer func() { err = errors.Join(err, api.Stop()) }()
	b := &bench{testCase: c, created: map[string]time.Time{}, bound: map[string]time.Time{}, done: make(chan struct{})}
	if b.client, err = kubernetes.NewForConfig(api.Config); err != nil {
		return figures{}, err
	}
	if err := b.furnish(ctx); err != nil {
		return figures{}, err
	}
	stop, err := b.watch(ctx)
	if err != nil {
		return figures{}, err
	}
	defer stop()
	running, err := s.start(ctx, dir, api.Config)
	if err != nil {
		return figures{}, err
	}
	defer func() { err = errors.Join(err, running.End()) }()
	return b.run(ctx, api, running)
}

// start starts the scheduler.
func (s scheduler) start(ctx context.Context, dir string, cfg *rest.Config) (servers.Process, error) {
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "scheduler.yaml")
	err := servers.WriteKubeconfig(kubeconfig, cfg)
	if err != nil {
		return servers.Process{}, err
	}
	doc := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %s, qps: 100000, burst: 100000, contentType: application/vnd.kubernetes.protobuf}
`, kubeconfig)
	if err := os.WriteFile(config, []byte(doc), 0o600); err != nil {
		return servers.Process{}, err
	}
	port, err := servers.FreePort()
	if err != nil {
		return servers.Process{}, err
	}
	binary, err := filepath.Abs(s.binary)
	if err != nil {
		return servers.Process{}, err
	}
	return servers.Command(ctx, dir, binary, append(slices.Clone(s.args), "--config", config, "--secure-port", port, "--bind-address", "127.0.0.1",
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)...)
}

// furnish makes what a case needs beside its pods.
func (b *bench) furnish(ctx context.Context) error {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: classUrgent}, Value: 10}
	if _, err := b.client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range b.before.namespaces {
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "devops"}}}
		if _, err := b.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return servers.Each(ctx, clients, b.nodes, func(ctx context.Context, i int) error {
		n := nodeOf(b.testCase, i)
		made, err := b.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Spec.Taints, made.Status = nil, n.Status // without a node's controller nobody takes its first taint away
		if made, err = b.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
		made.Status = n.Status
		_, err = b.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

// watch notes when pods get their nodes.
func (b *bench) watch(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(b.client, 0, informers.WithTransform(func(obj any) (any, error) {
		if p, ok := obj.(*v1.Pod); ok {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, Spec: v1.PodSpec{NodeName: p.Spec.NodeName}}, nil
		}
		return obj, nil
	}))
	stop = func() { cancel(); factory.Shutdown() }
	handler, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: b.see, UpdateFunc: func(_, obj any) { b.see(obj) },
	})
	if err != nil {
		return stop, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
		return stop, context.Cause(ctx)
	}
	return stop, nil
}

func (b *bench) see(obj any) {
	p, ok := obj.(*v1.Pod)
	if !ok || p.Spec.NodeName == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := p.Namespace + "/" + p.Name
	if _, known := b.bound[key]; known {
		return
	}
	b.bound[key] = time.Now()
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// place creates a batch, and waits until all its pods have nodes.
func (b *bench) place(ctx context.Context, pods batch, prefix string) error {
	if pods.n == 0 {
		return nil
	}
	b.mu.Lock()
	b.left, b.done = pods.n, make(chan struct{})
	done := b.done
	b.mu.Unlock()
	if err := b.create(ctx, pods, prefix); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-time.After(patience):
		b.mu.Lock()
		defer b.mu.Unlock()
		return fmt.Errorf("%d of %d pods have no node after %s", b.left, pods.n, patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *bench) create(ctx context.Context, pods batch, prefix string) error {
	return servers.Each(ctx, clients, pods.n, func(ctx context.Context, i int) error {
		p := podOf(pods, i, prefix)
		b.mu.Lock()
		b.created[p.Namespace+"/"+p.Name] = time.Now()
		b.mu.Unlock()
		_, err := b.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// run measures.
func (b *bench) run(ctx context.Context, api *servers.Server, s servers.Process) (figures, error) {
	if err := b.place(ctx, b.before, "before-"); err != nil {
		return figures{}, err
	}
	if err := b.create(ctx, b.never, "never-"); err != nil {
		return figures{}, err
	}
	b.created = map[string]time.Time{}
	cpu, err := s.CPU()
	if err != nil {
		return figures{}, err
	}
	apiCPU, err := api.CPU()
	if err != nil {
		return figures{}, err
	}
	start := time.Now()
	if err := b.place(ctx, b.measured, "measured-"); err != nil {
		return figures{}, err
	}
	took := time.Since(start)
	cpuAfter, err := s.CPU()
	if err != nil {
		return figures{}, err
	}
	apiAfter, err := api.CPU()
	if err != nil {
		return figures{}, err
	}
	memory, err := s.Memory()
	if err != nil {
		return figures{}, err
	}
	n := float64(b.measured.n)
	waits := b.waits()
	return figures{
		PodsPerSecond: n / took.Seconds(), Memory: memory,
		BindP50: waits[len(waits)/2], BindP99: waits[len(waits)*99/100],
		SchedulerCPU: ms(cpuAfter-cpu) / n, ServerCPU: ms(apiAfter-apiCPU) / n,
	}, nil
}

// waits returns how long each measured pod waited for its node, in milliseconds, sorted.
func (b *bench) waits() []float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []float64
	for key, at := range b.created {
		out = append(out, ms(b.bound[key].Sub(at)))
	}
	slices.Sort(out)
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
