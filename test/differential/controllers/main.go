// Controllers lets Wherry's controllers and upstream's work on the same objects, and compares what becomes of them:
// every field, the events, and what is there at all. Each has an API server of ours to itself; a player stands in for
// scheduler and kubelets on both. What happens is random; a seed plays it again.
//
//	go run ./test/differential/controllers -kube-controller-manager /path [-scenes 20] [-seed 1] bin/wherry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"wherry.dev/test/differential/seeds"
	"wherry.dev/test/program"
)

type options struct {
	wherry, upstream string
	dir              string
	seed             uint64
	scenes, steps    int
	only             string
	most             int
	patience         time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.upstream, "kube-controller-manager", "", "upstream's controllers")
	flag.StringVar(&o.dir, "dir", "", "where the data lie while it runs; by default where temporary files do")
	flag.Uint64Var(&o.seed, "seed", 1, "the first scene's seed; each next one's is one higher")
	flag.IntVar(&o.scenes, "scenes", 20, "scenes to play")
	flag.IntVar(&o.steps, "steps", 12, "things that happen in each scene")
	flag.StringVar(&o.only, "only", "", "kinds of things that happen, separated by commas; by default all: "+strings.Join(themes(), ","))
	flag.IntVar(&o.most, "differences", 5, "end after so many scenes with a difference")
	flag.DurationVar(&o.patience, "patience", 20*time.Second, "how long both may take until all is the same")
	flag.Parse()
	if flag.NArg() != 1 || o.upstream == "" {
		fmt.Fprintln(os.Stderr, "usage: controllers -kube-controller-manager PATH [flags] WHERRY")
		os.Exit(2)
	}
	o.wherry = flag.Arg(0)
	program.Main("controllers", func(ctx context.Context) error { return run(ctx, o) })
}

// run starts everything, plays the scenes, and removes everything.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-differential-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	wherry, err := filepath.Abs(o.wherry)
	if err != nil {
		return err
	}
	ours, err := startSide(ctx, filepath.Join(dir, "ours"), wherry, wherry, "controller-manager")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	theirs, err := startSide(ctx, filepath.Join(dir, "theirs"), wherry, o.upstream, "--controllers=*,-ttl-controller")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.stop()) }()
	return (&play{options: o, ours: ours, theirs: theirs}).scenesOf(ctx)
}

// play is both sides over all scenes.
type play struct {
	options
	ours, theirs *side
	happened     int
}

// scenesOf plays all scenes. It returns an error if there was a difference in one of them.
func (p *play) scenesOf(ctx context.Context) error {
	start := time.Now()
	played, different, err := seeds.Play(p.seed, p.scenes, p.most, func(seed uint64) (string, error) { return p.scene(ctx, seed) })
	fmt.Printf("%d scenes, %d with differences; %d things happened; %s\n", played, different, p.happened, time.Since(start).Round(time.Second))
	if err == nil && different > 0 {
		return errors.New("the controllers differ")
	}
	return err
}

// scene plays one scene in a namespace of its own, which is deleted in the end.
func (p *play) scene(ctx context.Context, seed uint64) (report string, err error) {
	s := newScene(seed, p.only)
	p.ours.seen, p.theirs.seen = nil, nil
	var told []string
	differ := ""
	for step := 0; step < p.steps && differ == ""; step++ {
		what, do := s.next(step)
		told = append(told, what)
		for _, side := range []*side{p.ours, p.theirs} {
			if err := do(ctx, side); err != nil {
				return "", fmt.Errorf("%s: %s: %w", side.name, what, err)
			}
		}
		p.happened++
		if differ, err = p.compare(ctx, s.namespace); err != nil {
			return "", err
		}
	}
	left, err := p.clear(ctx, s.namespace)
	if differ += left; differ == "" || err != nil {
		return "", err
	}
	return fmt.Sprintf("=== seed %d\n%s\n%s", seed, strings.Join(told, "\n"), differ), nil
}

// compare waits until both sides have the same and nothing changes any more. It returns what is not the same after all.
func (p *play) compare(ctx context.Context, namespace string) (differ string, err error) {
	const settled = 400 * time.Millisecond
	var last []string
	since, deadline := time.Now(), time.Now().Add(p.patience)
	err = wait.PollUntilContextCancel(ctx, 80*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ours, err := p.ours.state(ctx, namespace)
		if err != nil {
			return false, err
		}
		theirs, err := p.theirs.state(ctx, namespace)
		if err != nil {
			return false, err
		}
		differ = differences(ours, theirs)
		if now := slices.Concat(ours, theirs); !slices.Equal(now, last) {
			last, since = now, time.Now()
		}
		return differ == "" && time.Since(since) >= settled || time.Now().After(deadline), nil
	})
	return differ, err
}

// clear deletes the scene's namespace, and what it has outside, and waits until both sides have none of it, or both keep
// it. It returns why one of them keeps it.
func (p *play) clear(ctx context.Context, namespace string) (why string, err error) {
	for _, side := range []*side{p.ours, p.theirs} {
		if err := side.clear(ctx, namespace); err != nil {
			return "", err
		}
	}
	deadline := time.Now().Add(p.patience)
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ours, err := p.ours.left(ctx, namespace)
		if err != nil {
			return false, err
		}
		theirs, err := p.theirs.left(ctx, namespace)
		if err != nil {
			return false, err
		}
		switch {
		case ours == "" && theirs == "":
			return true, nil
		case ours != "" && theirs != "":
			// A pod whose index has failed keeps its finalizer until there is another one, which the namespace refuses.
			return time.Now().After(deadline.Add(time.Minute)), nil
		case time.Now().After(deadline):
			why = fmt.Sprintf("the namespace does not go: ours %q, upstream's %q\n", ours, theirs)
		}
		return why != "", nil
	})
	return why, err
}
