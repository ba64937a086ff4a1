package cri

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/disk"
)

func BenchmarkRunPodSandbox(b *testing.B) {
	n := newNode(b)
	for b.Loop() {
		id, err := n.run.RunPodSandbox(b.Context(), n.podConfig(), "")
		n.must(err)
		b.StopTimer()
		n.must(n.run.StopPodSandbox(b.Context(), id))
		n.must(n.run.RemovePodSandbox(b.Context(), id))
		b.StartTimer()
	}
}

func BenchmarkStopAndRemovePodSandbox(b *testing.B) {
	n := newNode(b)
	for b.Loop() {
		b.StopTimer()
		id, err := n.run.RunPodSandbox(b.Context(), n.podConfig(), "")
		n.must(err)
		b.StartTimer()
		n.must(n.run.StopPodSandbox(b.Context(), id))
		n.must(n.run.RemovePodSandbox(b.Context(), id))
	}
}

func benchContainer(b *testing.B, change func(*runtimeapi.ContainerConfig)) {
	p := newNode(b).pod()
	cfg := containerConfig("main", "sleep", "1000")
	change(cfg)
	for b.Loop() {
		cfg.Metadata.Attempt++
		id := p.start(cfg)
		b.StopTimer()
		p.must(p.run.RemoveContainer(b.Context(), id))
		b.StartTimer()
	}
}

func BenchmarkCreateAndStart(b *testing.B) { benchContainer(b, func(*runtimeapi.ContainerConfig) {}) }

func BenchmarkCreateAndStartUnconfined(b *testing.B) {
	benchContainer(b, func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.Seccomp = nil
	})
}

func BenchmarkExecSync(b *testing.B) {
	p := newNode(b).pod()
	id := p.start(containerConfig("main", "sleep", "1000"))
	for b.Loop() {
		p.exec(id, "true")
	}
}

// BenchmarkExitToEvent measures from the signal that kills a container's process to the event
// that reports it.
func BenchmarkExitToEvent(b *testing.B) {
	p := newNode(b).pod()
	cfg := containerConfig("main", "sleep", "1000")
	events := p.events.subscribe()
	for b.Loop() {
		b.StopTimer()
		cfg.Metadata.Attempt++
		id := p.start(cfg)
		c, err := p.container(id)
		p.must(err)
		b.StartTimer()
		p.must(unix.Kill(c.PID(), unix.SIGKILL))
		for e := range events {
			if e.ContainerId == id && e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				break
			}
		}
		b.StopTimer()
		p.must(p.run.RemoveContainer(b.Context(), id))
		b.StartTimer()
	}
}

// BenchmarkPodsInParallel measures a pod with one container, from nothing to removed, eight in
// parallel.
func BenchmarkPodsInParallel(b *testing.B) {
	n := newNode(b)
	work := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range work {
				p := n.pod()
				p.start(containerConfig("main", "sleep", "1000"))
				n.must(n.run.RemovePodSandbox(b.Context(), p.id))
			}
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}

// BenchmarkList500Containers lists containers that exist in memory only.
func BenchmarkList500Containers(b *testing.B) {
	s := &Server{store: newStore()}
	env := &container.Env{}
	for range 500 {
		rec := container.Record{ID: disk.NewID(), SandboxID: disk.NewID(), CreatedAt: 1}
		rec.Config.M = containerConfig("c", "true")
		s.addContainer(env.New(rec, nil))
	}
	for b.Loop() {
		if got := len(s.listContainers(nil)); got != 500 {
			b.Fatal(got)
		}
	}
}
