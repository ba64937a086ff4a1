package sim

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/podops"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/leaks"
)

var (
	lives = flag.Uint64("lives", fromEnv("LIVES", 2000), "how many lives to play")
	most  = flag.Uint64("most", 1, "after how many failures to stop")
	seed  = flag.Uint64("seed", fromEnv("SEED", 1), "seed of the first life; the next have the next numbers")
)

// fromEnv lets make set what go test cannot pass to several packages at once.
func fromEnv(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// workspace returns a folder in memory if possible: a life writes many small files.
func workspace(t testing.TB) string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		dir, err := os.MkdirTemp("/dev/shm", "wherry-sim-") //nolint:usetesting // TempDir is on a disk
		if err == nil {
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
	}
	return t.TempDir()
}

// panics makes a life of this program panic, to test what the panic shows.
const panics = "WHERRY_SIM_PANICS"

// TestMain trades memory for speed: lives are short, and what they leave behind is garbage.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	if err := os.Setenv("GODEBUG", strings.TrimPrefix(os.Getenv("GODEBUG")+",tracebacklabels=1", ",")); err != nil { // a panic names its seed
		panic(err)
	}
	os.Exit(leaks.Watch(m).Run())
}

// TestLives plays lives until one goes wrong. A single life is printed.
func TestLives(t *testing.T) {
	root := workspace(t)
	began := time.Now()
	var played, failed atomic.Uint64
	t.Run("all", func(t *testing.T) {
		shards := uint64(runtime.GOMAXPROCS(0))
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				told := time.Now()
				for s := *seed + shard; s < *seed+*lives && failed.Load() < *most; s += shards {
					out := Play(t, s, filepath.Join(root, fmt.Sprint(s)))
					if n := played.Add(1); shard == 0 && time.Since(told) > 5*time.Second {
						told = time.Now()
						fmt.Printf("%d of %d lives, %.1f ms each\n", n, *lives, float64(time.Since(began).Milliseconds())/float64(n))
					}
					if out.Err != nil {
						failed.Add(1)
						t.Error(report(out))
					} else if *lives == 1 {
						t.Log("\n" + strings.Join(out.History(), "\n"))
					}
				}
			})
		}
	})
	t.Logf("%d lives in %v", played.Load(), time.Since(began).Round(time.Millisecond))
}

func FuzzLives(f *testing.F) {
	root := workspace(f)
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, s uint64) {
		if out := Play(t, s, filepath.Join(root, fmt.Sprintf("%d-%d", os.Getpid(), s))); out.Err != nil {
			t.Fatal(report(out))
		}
	})
}

func report(out Outcome) string {
	text := out.History()
	if *lives != 1 && len(text) > 40 {
		text = append(slices.Clone(text[:1]), append([]string{"…"}, text[len(text)-40:]...)...)
	}
	return fmt.Sprintf("seed %d: %v\n%s\nplay it again, and see all of it: make sim SEED=%d LIVES=1", out.Seed, out.Err, strings.Join(text, "\n"), out.Seed)
}

// A failure is worth nothing if it does not recur, on any machine, under any load.
func TestASeedPlaysTheSameLifeAgain(t *testing.T) {
	root := workspace(t)
	lives := func(draw func()) [][]string {
		var out [][]string
		for s := range uint64(20) {
			out = append(out, play(t, 1000+s, filepath.Join(root, "a"), breaks{draw: draw}).History())
		}
		return out
	}
	first := lives(nil)
	for _, procs := range []int{1, 2, 8} {
		before := runtime.GOMAXPROCS(procs)
		again := lives(stir)
		runtime.GOMAXPROCS(before)
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatalf("with %d processors, of the seeds from 1000:\n%s", procs, diff)
		}
	}
}

// A runtime that says yes to a stop but does nothing used to be asked again at once, for ever.
func TestWhatHasNoEffectIsBackedOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "life")
	lies := breaks{before: func(op *podplan.Op) {
		if op.Kind == podplan.StopContainer || op.Kind == podplan.RemoveSandbox {
			op.Kind = podplan.EnsureCgroup
		}
	}}
	for s := range uint64(20) {
		if out := play(t, s, dir, lies); out.Err != nil && strings.Contains(out.Err.Error(), "it is not backed off") {
			t.Error(report(out))
		}
	}
}

// stir now and then lets other goroutines go first, and makes threads sleep, as a loaded machine
// does.
func stir() {
	for range rand.IntN(4) {
		runtime.Gosched()
	}
	if rand.IntN(100) == 0 {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: rand.Int64N(100_000)}, nil)
	}
}

func TestAPanicNamesItsSeed(t *testing.T) {
	if dir := os.Getenv(panics); dir != "" {
		play(t, 4711, dir, breaks{draw: func() { panic("on purpose") }})
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAPanicNamesItsSeed$")
	cmd.Env = append(os.Environ(), panics+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil || !regexp.MustCompile(`running.*labels:.*"seed": "4711"`).Match(out) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// unprepared says that devices are prepared, and asks no driver.
type unprepared struct{ podops.Claims }

func (unprepared) Prepare(context.Context, *v1.Pod) error { return nil }

// Each case breaks the kubelet in one way; lives must show which rule that violates.
func TestLivesShowWhatIsBroken(t *testing.T) {
	for rule, b := range map[string]breaks{
		"of the same container": {after: func(w watched, op podplan.Op, in *podplan.Input) {
			if op.Kind == podplan.CreateContainer {
				op.Attempt++
				w.ops.Do(w.n.ctx, op, in)
			}
		}},
		"attempt of": {before: func(op *podplan.Op) {
			if op.Kind == podplan.CreateContainer {
				op.Attempt = 0
			}
		}},
		"is done": {after: func(w watched, op podplan.Op, in *podplan.Input) {
			if pod := in.Pod; op.Kind == podplan.PullImage && len(pod.Spec.InitContainers) > 0 && len(in.Sandboxes) > 0 {
				w.ops.Do(w.n.ctx, podplan.Op{Kind: podplan.PullImage, Name: "c0"}, in)
				with := *in
				with.Images = map[string]podplan.Image{"c0": {Ref: imagePresent}}
				w.ops.Do(w.n.ctx, podplan.Op{Kind: podplan.CreateContainer, Name: "c0", SandboxID: in.Sandboxes[0].ID}, &with)
			}
		}},
		"is told with the message": {status: func(st *v1.PodStatus) {
			for i := range st.ContainerStatuses {
				if end := st.ContainerStatuses[i].State.Terminated; end != nil {
					st.ContainerStatuses[i].State.Terminated = end.DeepCopy()
					st.ContainerStatuses[i].State.Terminated.Message = ""
				}
			}
		}},
		"restart count of": {status: func(st *v1.PodStatus) {
			for i := range st.ContainerStatuses {
				st.ContainerStatuses[i].RestartCount %= 2
			}
		}},
		"before its devices are prepared":        {deps: func(d *podops.Deps) { d.Claims = unprepared{d.Claims} }},
		"is told while its devices are prepared": {status: func(st *v1.PodStatus) { st.Phase = v1.PodFailed }},
		"devices of 1 pods are prepared still": {before: func(op *podplan.Op) {
			if op.Kind == podplan.UnprepareClaims {
				time.Sleep(time.Hour)
			}
		}},
		"is written while": {status: func(st *v1.PodStatus) { st.Phase = v1.PodSucceeded }},
		"phase went from": {status: func(st *v1.PodStatus) {
			if st.Phase == v1.PodFailed && time.Now().UnixMicro()%2 == 1 {
				st.Phase = v1.PodSucceeded
			}
		}},
		"observedGeneration fell": {status: func(st *v1.PodStatus) { st.ObservedGeneration = max(0, 100-st.ObservedGeneration) }},
		"times in": {before: func(op *podplan.Op) {
			if op.Kind == podplan.StartContainer {
				op.Kind = podplan.EnsureCgroup // never started, and no one is told
			}
		}},
		"containers are left": {before: func(op *podplan.Op) {
			if op.Kind == podplan.StopContainer {
				op.Kind = podplan.EnsureCgroup
			}
		}},
		"are left": {before: func(op *podplan.Op) {
			if op.Kind == podplan.RemoveSandbox {
				time.Sleep(time.Hour)
			}
		}},
		"may not use":                 {deps: func(d *podops.Deps) { d.Pulled = nil }},
		"which its pod does not have": {auth: func(a *runtimeapi.AuthConfig) { a.Password = "another's" }},
		"is not what the objects said": {create: func(cfg *runtimeapi.ContainerConfig) {
			for _, e := range cfg.Envs {
				if e.Key == "CONFIG" {
					e.Value = []byte(configOne + " v-1")
				}
			}
		}},
		"with runtime handler": {handler: func(string) string { return "" }},
		"with host ports":      {sandbox: func(cfg *runtimeapi.PodSandboxConfig) { cfg.PortMappings = nil }},
		"with name servers":    {sandbox: func(cfg *runtimeapi.PodSandboxConfig) { cfg.DnsConfig = nil }},
		"with hostname":        {sandbox: func(cfg *runtimeapi.PodSandboxConfig) { cfg.Hostname = "another" }},
		"of its overhead":      {sandbox: func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.Overhead = nil }},
		"to run as":            {create: func(cfg *runtimeapi.ContainerConfig) { cfg.Linux.SecurityContext.RunAsUser = nil }},
		"with the stop signal": {create: func(cfg *runtimeapi.ContainerConfig) { cfg.StopSignal = 0 }},
		"which is refused":     {admit: true},
		"volume ": {before: func(op *podplan.Op) {
			if op.Kind == podplan.MountVolume && time.Since(dawn) > time.Minute {
				op.Kind = podplan.EnsureCgroup // never written again
			}
		}},
		"is not there: ": {before: func(op *podplan.Op) {
			if op.Kind == podplan.MountVolume {
				op.Kind = podplan.EnsureCgroup
			}
		}},
		"watched for nobody": {after: func(w watched, op podplan.Op, in *podplan.Input) {
			if op.Kind == podplan.Forget {
				w.n.objects.Use("nobody", objectcache.Refs(in.Pod))
			}
		}},
		"lacks an object, and is": {result: func(r *podplan.Result) {
			if r.Reason == podplan.ReasonCreateConfigError {
				r.Reason = podplan.ReasonCreateContainerError
			}
		}},
		"did not come to rest": {before: func(op *podplan.Op) {
			if op.Kind == podplan.CreateContainer {
				time.Sleep(time.Hour)
			}
		}},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "life")
			var seen []error
			for s := range uint64(400) {
				out := play(t, s, dir, b)
				if out.Err != nil && strings.Contains(out.Err.Error(), rule) {
					return
				}
				seen = append(seen, out.Err)
			}
			t.Errorf("not seen, but %v", seen)
		})
	}
}
