// Controllers lets Wherry's controllers and upstream's work on the same objects, and compares what becomes of them:
// every field, the events, and what is there at all. Each has an API server of ours to itself; a player stands in for
// scheduler and kubelets on both. What happens is random; a seed plays it again.
//
//	go run ./test/differential/controllers -kube-controller-manager /path [-scenes 20] [-seed 1] bin/wherry
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
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
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "controllers:", err)
		stop()
		os.Exit(1)
	}
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
	start, played, different := time.Now(), 0, 0
	defer func() {
		fmt.Printf("%d scenes, %d with differences; %d things happened; %s\n",
			played, different, p.happened, time.Since(start).Round(time.Second))
	}()
	for i := range p.scenes {
		seed := p.seed + uint64(i) //nolint:gosec // i is not negative
		report, err := p.scene(ctx, seed)
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		if played++; report == "" {
			continue
		}
		fmt.Println(report)
		if different++; different >= p.most {
			break
		}
	}
	if different > 0 {
		return errors.New("the controllers differ")
	}
	return nil
}

// scene plays one scene in a namespace of its own, which is deleted in the end.
func (p *play) scene(ctx context.Context, seed uint64) (report string, err error) {
	s := newScene(seed, p.only)
	p.ours.seen, p.theirs.seen = nil, nil
	var told []string
	for step := range p.steps {
		what, do := s.next(step)
		told = append(told, what)
		for _, side := range []*side{p.ours, p.theirs} {
			if err := do(ctx, side); err != nil {
				return "", fmt.Errorf("%s: %s: %w", side.name, what, err)
			}
		}
		p.happened++
		differ, err := p.compare(ctx, s.namespace)
		if err != nil {
			return "", err
		}
		if differ != "" {
			report = fmt.Sprintf("=== seed %d\n%s\n%s", seed, strings.Join(told, "\n"), differ)
			break
		}
	}
	gone := p.clear(ctx, s.namespace)
	if report == "" && gone != nil {
		report = fmt.Sprintf("=== seed %d\n%s\n%v", seed, strings.Join(told, "\n"), gone)
	}
	return report, nil
}

// compare waits until both sides have the same and nothing changes any more. It returns what is not the same after all.
func (p *play) compare(ctx context.Context, namespace string) (string, error) {
	const settled = 400 * time.Millisecond
	var last string
	since := time.Now()
	for deadline := time.Now().Add(p.patience); ; {
		ours, err := p.ours.state(ctx, namespace)
		if err != nil {
			return "", err
		}
		theirs, err := p.theirs.state(ctx, namespace)
		if err != nil {
			return "", err
		}
		differ := differences(ours, theirs)
		if now := strings.Join(ours, "\n") + strings.Join(theirs, "\n"); now != last {
			last, since = now, time.Now()
		}
		if differ == "" && time.Since(since) >= settled || time.Now().After(deadline) {
			return differ, nil
		}
		select {
		case <-time.After(80 * time.Millisecond):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// clear deletes the scene's namespace, and what it has outside, and waits until both sides have none of it, or both keep
// it.
func (p *play) clear(ctx context.Context, namespace string) error {
	for _, side := range []*side{p.ours, p.theirs} {
		if err := side.clear(ctx, namespace); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(p.patience); ; time.Sleep(50 * time.Millisecond) {
		var left []string
		for _, side := range []*side{p.ours, p.theirs} {
			why, err := side.left(ctx, namespace)
			if err != nil {
				return err
			}
			if why != "" {
				left = append(left, side.name+": "+why)
			}
		}
		switch {
		case len(left) == 0:
			return nil
		case len(left) == 2 && time.Now().After(deadline.Add(time.Minute)):
			return nil // a pod whose index has failed keeps its finalizer until there is another one, which the namespace refuses
		case len(left) == 1 && time.Now().After(deadline):
			return fmt.Errorf("the namespace does not go: %s", strings.Join(left, "; "))
		}
	}
}

// differences returns what only one of two sorted states has: of objects that both have, only the fields.
func differences(ours, theirs []string) string {
	count := map[string]int{}
	for _, o := range ours {
		count[o]++
	}
	for _, o := range theirs {
		count[o]--
	}
	only := func(has []string, sign int) (out []string) {
		for i, o := range has {
			if count[o]*sign > 0 && (i == 0 || has[i-1] != o) {
				out = append(out, o)
			}
		}
		return out
	}
	mine, others := only(ours, 1), only(theirs, -1)
	var out strings.Builder
	for _, o := range mine {
		i := slices.IndexFunc(others, func(other string) bool { return keyOf(other) == keyOf(o) && keyOf(o) != "" })
		if i < 0 {
			fmt.Fprintf(&out, "only ours (%d): %s\n", count[o], o)
			continue
		}
		fmt.Fprintf(&out, "%s (ours %+d, upstream's %+d):\n%s", keyOf(o), count[o], -count[others[i]], fieldsOf(o, others[i]))
		others = slices.Delete(others, i, i+1)
	}
	for _, o := range others {
		fmt.Fprintf(&out, "only upstream's (%d): %s\n", -count[o], o)
	}
	return out.String()
}

// keyOf returns kind and name of an object, and nothing of an event.
func keyOf(text string) string {
	kind, content, _ := strings.Cut(text, " ")
	var o struct{ Metadata struct{ Name string } }
	if kind == "Event" || json.Unmarshal([]byte(content), &o) != nil {
		return ""
	}
	return kind + " " + o.Metadata.Name
}

// fieldsOf returns the fields in which two objects differ, one to a line.
func fieldsOf(ours, theirs string) string {
	var out strings.Builder
	a, b := map[string]string{}, map[string]string{}
	flatten(a, ours)
	flatten(b, theirs)
	paths := slices.Compact(slices.Sorted(maps.Keys(union(a, b))))
	for _, p := range paths {
		if a[p] != b[p] {
			fmt.Fprintf(&out, "    %s: ours %s, upstream's %s\n", p, cmp.Or(a[p], "nothing"), cmp.Or(b[p], "nothing"))
		}
	}
	return out.String()
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// flatten writes the values of an object's text by path.
func flatten(into map[string]string, text string) {
	_, content, _ := strings.Cut(text, " ")
	var o map[string]any
	if json.Unmarshal([]byte(content), &o) != nil {
		return
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(path+"."+k, e)
			}
		case []any:
			for i, e := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), e)
			}
		default:
			into[path] = fmt.Sprintf("%v", v)
		}
	}
	walk("", o)
}
