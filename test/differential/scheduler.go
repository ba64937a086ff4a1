package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"wherry.dev/test/bench/servers"
)

const (
	// patience is how long a scheduler may take for a pod. Longer than that is no answer.
	patience = 10 * time.Second
	// quiet is how long no victim comes when there is none left.
	quiet = 60 * time.Millisecond
)

// scheduler is one of the two.
type scheduler struct {
	name    string
	process servers.Process
	tap     *tap
	log     *os.File // what it logs, read up to the last pod
}

// startScheduler starts a program that takes kube-scheduler's flags.
func startScheduler(ctx context.Context, dir string, cfg *rest.Config, name, binary string,
	args ...string) (_ *scheduler, err error) {
	dir = filepath.Join(dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	s := &scheduler{name: name}
	if s.tap, err = newTap(ctx, cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.tap.stop())
		}
	}()
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "scheduler.yaml")
	err = servers.WriteKubeconfig(kubeconfig, &rest.Config{Host: s.tap.url})
	if err != nil {
		return nil, err
	}
	// All nodes are looked at. PreBind would write to claims and wait for what nobody does here.
	doc := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %s, qps: 100000, burst: 100000}
percentageOfNodesToScore: 100
profiles:
%s`, kubeconfig, profiles)
	if err = os.WriteFile(config, []byte(doc), 0o600); err != nil {
		return nil, err
	}
	port, err := servers.FreePort()
	if err != nil {
		return nil, err
	}
	s.process, err = servers.Command(ctx, dir, binary, append(slices.Clone(args), "--config", config,
		"--secure-port", port, "--bind-address", "127.0.0.1", "--authentication-kubeconfig", kubeconfig,
		"--authorization-kubeconfig", kubeconfig,
		"--vmodule", "schedule_one=10,schedule_one_podgroup=10,podgroups=10")...)
	if err != nil {
		return nil, err
	}
	if s.log, err = os.Open(filepath.Join(dir, filepath.Base(binary)+".log")); err != nil {
		return nil, errors.Join(err, s.process.End())
	}
	return s, nil
}

func (s *scheduler) stop() error { return errors.Join(s.process.End(), s.tap.stop(), s.log.Close()) }

// expect is called before the pods are created, and their group, if they have one.
func (s *scheduler) expect(group string, pods ...*v1.Pod) error {
	s.tap.expect(group, pods...)
	_, err := s.log.Seek(0, io.SeekEnd)
	return err
}

// answer waits until the scheduler is done with the pod.
func (s *scheduler) answer(ctx context.Context, pod *v1.Pod) (answer, error) {
	name := nameOf(pod)
	w, err := s.wait(ctx, func(w writes) (time.Duration, bool) {
		p := w.pods[name]
		switch {
		case p.condition == nil:
			return 0, false
		case p.node != "" || p.nominated == "":
			return 0, true
		}
		return quietFor(len(w.victims) < victimsIn(p.condition.Message)), true
	})
	if err != nil {
		return answer{}, err
	}
	return s.understand(pod, w)
}

// quietFor returns how long it must be quiet until no victim comes any more; missing if more of them were announced: it
// may be that they are going already.
func quietFor(missing bool) time.Duration {
	if missing {
		return 5 * quiet
	}
	return quiet
}

// wait waits until what was written is all there is: done says so if nothing more comes for so long. It gives up after
// some time.
func (s *scheduler) wait(ctx context.Context, done func(writes) (time.Duration, bool)) (writes, error) {
	late := time.After(patience)
	for {
		w, more := s.tap.so()
		var pause <-chan time.Time
		if enough, ok := done(w); ok {
			left := enough - time.Since(w.last)
			if enough == 0 || left <= 0 {
				return w, nil
			}
			pause = time.After(left)
		}
		select {
		case <-more:
		case <-pause:
		case <-late:
			return w, nil
		case <-ctx.Done():
			return writes{}, context.Cause(ctx)
		}
	}
}

// understand makes an answer of what the scheduler has written, and logged before that.
func (s *scheduler) understand(pod *v1.Pod, w writes) (answer, error) {
	log, err := io.ReadAll(s.log)
	if err != nil {
		return answer{}, err
	}
	p := w.pods[nameOf(pod)]
	a := p.answer()
	if a.Node != "" {
		a.Scores = scoresOf(string(log), nameOf(pod))
	} else {
		a.Victims = slices.Sorted(slices.Values(w.victims))
	}
	return a, nil
}

// answer returns what was said of a pod, without scores and victims.
func (p said) answer() answer {
	switch {
	case p.node != "":
		return answer{Node: p.node}
	case p.condition == nil:
		return answer{Why: "no answer"}
	}
	return answer{Why: p.condition.Reason + ": " + sensible(p.condition.Message), Nominated: p.nominated}
}
