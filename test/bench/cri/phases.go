package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// parallel is how many pods start at a time in the parallel run.
const parallel = 8

func (p *peer) measure(ctx context.Context, o options) ([]row, error) {
	var rows []row
	for _, phase := range []func(context.Context, options) ([]row, error){
		p.sandboxes, p.containers, p.exits, p.manyPods, p.podMemory, p.lists,
	} {
		r, err := phase(ctx, o)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

func millis(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func (p *peer) sandboxes(ctx context.Context, o options) ([]row, error) {
	runs := row{name: "RunPodSandbox, ms", target: "≤ 5"}
	removals := row{name: "StopPodSandbox + RemovePodSandbox, ms", target: "≤ 10"}
	for range o.samples {
		cfg := p.podConfig()
		began := time.Now()
		s, err := p.run(ctx, cfg)
		if err != nil {
			return nil, err
		}
		runs.samples = append(runs.samples, millis(began))
		began = time.Now()
		if err := p.remove(ctx, s); err != nil {
			return nil, err
		}
		removals.samples = append(removals.samples, millis(began))
	}
	return []row{runs, removals}, nil
}

func (p *peer) containers(ctx context.Context, o options) ([]row, error) {
	starts := row{name: "CreateContainer + StartContainer, ms", target: "≤ 20"}
	execs := row{name: "ExecSync of true, ms", target: "≤ 10"}
	s, err := p.run(ctx, p.podConfig())
	if err != nil {
		return nil, err
	}
	for i := range o.samples {
		began := time.Now()
		id, err := p.start(ctx, s, fmt.Sprintf("c%d", i))
		if err != nil {
			return nil, err
		}
		starts.samples = append(starts.samples, millis(began))
		began = time.Now()
		if _, err := p.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}}); err != nil {
			return nil, err
		}
		execs.samples = append(execs.samples, millis(began))
		if _, err := p.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			return nil, err
		}
	}
	return []row{starts, execs}, p.remove(ctx, s)
}

// exits measures the time from the kill of a container's process to the event that reports it.
func (p *peer) exits(ctx context.Context, o options) ([]row, error) {
	exits := row{name: "exit → event, ms", target: "≤ 2"}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return nil, err
	}
	stopped := make(chan string, 16)
	ended := make(chan error, 1)
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			if e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				stopped <- e.ContainerId
			}
		}
	}()
	s, err := p.run(ctx, p.podConfig())
	if err != nil {
		return nil, err
	}
	for i := range o.samples {
		id, err := p.start(ctx, s, fmt.Sprintf("c%d", i))
		if err != nil {
			return nil, err
		}
		pid, err := p.pidOf(ctx, id)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return nil, err
		}
		for told := ""; told != id; {
			select {
			case told = <-stopped:
			case err := <-ended:
				if status.Code(err) == codes.Unimplemented {
					return []row{exits}, p.remove(ctx, s)
				}
				return nil, err
			}
		}
		exits.samples = append(exits.samples, millis(began))
		// An event covers all containers of its pod: leave no dead ones in it.
		if _, err := p.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			return nil, err
		}
	}
	return []row{exits}, p.remove(ctx, s)
}

// manyPods starts pods of one container, several at a time.
func (p *peer) manyPods(ctx context.Context, o options) ([]row, error) {
	work := make(chan *runtimeapi.PodSandboxConfig)
	errs := make(chan error, parallel)
	began := time.Now()
	for range parallel {
		go func() {
			var all []error
			for cfg := range work {
				s, err := p.run(ctx, cfg)
				if err == nil {
					_, err = p.start(ctx, s, "main")
				}
				if err == nil {
					err = p.remove(ctx, s)
				}
				all = append(all, err)
			}
			errs <- errors.Join(all...)
		}()
	}
	for range o.pods {
		work <- p.podConfig()
	}
	close(work)
	var all []error
	for range parallel {
		all = append(all, <-errs)
	}
	rate := float64(o.pods) / time.Since(began).Seconds()
	return []row{{name: fmt.Sprintf("%d in parallel, start to removal, pods/s", parallel), target: "≥ 60", more: true, samples: []float64{rate}}}, errors.Join(all...)
}

func (p *peer) podMemory(ctx context.Context, o options) ([]row, error) {
	n := o.pods / 2
	before, err := p.memory()
	if err != nil {
		return nil, err
	}
	pods := make([]sandbox, n)
	for i := range pods {
		if pods[i], err = p.run(ctx, p.podConfig()); err != nil {
			return nil, err
		}
		if _, err := p.start(ctx, pods[i], "main"); err != nil {
			return nil, err
		}
	}
	after, err := p.memory()
	if err != nil {
		return nil, err
	}
	for _, s := range pods {
		if err := p.remove(ctx, s); err != nil {
			return nil, err
		}
	}
	return []row{
		{name: "memory for each pod, MiB (PSS)", target: "≤ 1", samples: []float64{(after - before) / float64(n)}},
		{name: "memory of the runtime, MiB (PSS)", samples: []float64{before}},
	}, nil
}

func (p *peer) lists(ctx context.Context, o options) ([]row, error) {
	lists := row{name: fmt.Sprintf("ListContainers of %d, ms", o.list), target: "≤ 2"}
	s, err := p.run(ctx, p.podConfig())
	if err != nil {
		return nil, err
	}
	for i := range o.list {
		if _, err := p.create(ctx, s, fmt.Sprintf("c%d", i)); err != nil {
			return nil, err
		}
	}
	for range o.samples {
		began := time.Now()
		resp, err := p.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return nil, err
		}
		lists.samples = append(lists.samples, millis(began))
		if len(resp.Containers) != o.list {
			return nil, fmt.Errorf("%d of %d containers are listed", len(resp.Containers), o.list)
		}
	}
	return []row{lists}, p.remove(ctx, s)
}
