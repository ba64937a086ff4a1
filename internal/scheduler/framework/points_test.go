package framework_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// The plugins of these tests note in which order they are called, and at which point.
type plugin struct {
	name  string
	calls *[]string
}

func (p plugin) Name() string { return p.name }

func (p plugin) note(point string) { *p.calls = append(*p.calls, point+" "+p.name) }

// filters has Filter only.
type filters struct{ plugin }

func (f filters) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
	f.note("filter")
	return nil
}

// both has Filter and Score, and scores 10.
type both struct{ filters }

func (b both) Score(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	b.note("score")
	return 10, nil
}

func (b both) ScoreExtensions() fwk.ScoreExtensions { return nil }

// sorter has what every profile needs.
type sorter struct{ plugin }

func (sorter) Less(a, b fwk.QueuedEntityInfo) bool { return a.GetTimestamp().Before(b.GetTimestamp()) }

func (s sorter) Bind(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status {
	s.note("bind")
	return nil
}

func registry(calls *[]string) framework.Registry {
	r := framework.Registry{}
	for _, name := range []string{"A", "B", "C"} {
		r[name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return both{filters{plugin{name, calls}}}, nil
		}
	}
	r["F"] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return filters{plugin{"F", calls}}, nil
	}
	for _, name := range []string{"Sort", "OtherSort"} {
		r[name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return sorter{plugin{name, calls}}, nil
		}
	}
	r["Broken"] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return nil, errors.New("args.weight: must be positive")
	}
	return r
}

// set reads a plugin set from words: "A B:3 -C" enables A, B with a weight, and disables C.
func set(words string) (out configv1.PluginSet) {
	for w := range strings.FieldsSeq(words) {
		if name, off := strings.CutPrefix(w, "-"); off {
			out.Disabled = append(out.Disabled, configv1.Plugin{Name: name})
			continue
		}
		name, weight, ok := strings.Cut(w, ":")
		e := configv1.Plugin{Name: name}
		if ok {
			e.Weight = new(int32(weight[0] - '0'))
		}
		out.Enabled = append(out.Enabled, e)
	}
	return out
}

// run makes a profile and returns the calls of its Filter and Score plugins, and the total score.
func run(t *testing.T, defaults string, custom *configv1.Plugins) (calls []string, total int64, err error) {
	t.Helper()
	shared := &framework.Shared{Nominator: framework.NewNominator(nil), Parallel: framework.NewParallelizer(1)}
	merged := framework.Merge(&configv1.Plugins{MultiPoint: set(defaults)}, custom)
	p, err := framework.NewProfile(t.Context(), "p", registry(&calls), merged, nil, shared)
	if err != nil {
		return nil, 0, err
	}
	pod := &v1.Pod{}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	state := framework.NewCycleState(info)
	n := []fwk.NodeInfo{framework.NewNodeInfo(&v1.Node{})}
	if st := p.RunFilterPlugins(t.Context(), state, pod, n[0]); !st.IsSuccess() {
		t.Fatal(st)
	}
	scores, st := p.RunScorePlugins(t.Context(), state, pod, n)
	if !st.IsSuccess() {
		t.Fatal(st)
	}
	return calls, scores[0].TotalScore, nil
}

// TestSetsArePerExtensionPoint has the examples of upstream's documentation of the configuration
// (Scheduler Configuration, multiPoint).
func TestSetsArePerExtensionPoint(t *testing.T) {
	for name, tc := range map[string]struct {
		custom *configv1.Plugins
		calls  string
		total  int64
	}{
		"the defaults":               {nil, "filter A, filter F, filter B, score A, score B", 20 + 10},
		"score switched off":         {&configv1.Plugins{Score: set("-*")}, "filter A, filter F, filter B", 0},
		"one filter switched off":    {&configv1.Plugins{Filter: set("-A")}, "filter F, filter B, score A, score B", 30},
		"one plugin switched off":    {&configv1.Plugins{MultiPoint: set("-A")}, "filter F, filter B, score B", 10},
		"all defaults switched off":  {&configv1.Plugins{MultiPoint: set("-* Sort C")}, "filter C, score C", 10},
		"another weight":             {&configv1.Plugins{Score: set("-B B:5")}, "filter A, filter F, filter B, score B, score A", 50 + 20},
		"replaced in its place":      {&configv1.Plugins{MultiPoint: set("A:7")}, "filter A, filter F, filter B, score A, score B", 80},
		"one more, last":             {&configv1.Plugins{MultiPoint: set("C:1")}, "filter A, filter F, filter B, filter C, score A, score B, score C", 40},
		"one more, at one point":     {&configv1.Plugins{Filter: set("C")}, "filter A, filter F, filter B, filter C, score A, score B", 30},
		"first at one point":         {&configv1.Plugins{Filter: set("B")}, "filter B, filter A, filter F, score A, score B", 30},
		"in another order":           {&configv1.Plugins{Filter: set("-* B A F")}, "filter B, filter A, filter F, score A, score B", 30},
		"only this, at one point":    {&configv1.Plugins{Filter: set("-* C")}, "filter C, score A, score B", 30},
		"the point's weight counts":  {&configv1.Plugins{MultiPoint: set("A:7"), Score: set("A:1")}, "filter A, filter F, filter B, score A, score B", 20},
		"off everywhere, on at one":  {&configv1.Plugins{MultiPoint: set("-A"), Score: set("A:3")}, "filter F, filter B, score B, score A", 40},
		"a weight of 0 is 1":         {&configv1.Plugins{Score: set("A:0")}, "filter A, filter F, filter B, score A, score B", 30},
		"off at a point that it has": {&configv1.Plugins{Filter: set("-F"), Score: set("-F")}, "filter A, filter B, score A, score B", 30},
	} {
		t.Run(name, func(t *testing.T) {
			calls, total, err := run(t, "Sort A:2 F B", tc.custom)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(calls, ", "); got != tc.calls || total != tc.total {
				t.Errorf("%s; %d\nwant %s; %d", got, total, tc.calls, tc.total)
			}
		})
	}
}

func TestErrorsInSets(t *testing.T) {
	for name, tc := range map[string]struct {
		custom *configv1.Plugins
		want   string
	}{
		"unknown":              {&configv1.Plugins{Filter: set("NoSuch")}, `unknown plugin "NoSuch"`},
		"unknown, off":         {&configv1.Plugins{Score: set("-NoSuch")}, `score disables the unknown plugin "NoSuch"`},
		"not at this point":    {&configv1.Plugins{Score: set("F")}, `score: plugin "F" does not have this extension point`},
		"twice":                {&configv1.Plugins{Score: set("A A")}, `score: plugin "A" is enabled twice`},
		"twice everywhere":     {&configv1.Plugins{MultiPoint: set("C C")}, `multiPoint: plugin "C" is enabled twice`},
		"two sorters":          {&configv1.Plugins{QueueSort: set("OtherSort")}, "2 plugins sort the queue"},
		"nobody sorts":         {&configv1.Plugins{QueueSort: set("-Sort")}, "0 plugins sort the queue"},
		"nobody binds":         {&configv1.Plugins{Bind: set("-*")}, "no plugin binds pods"},
		"a plugin's arguments": {&configv1.Plugins{MultiPoint: set("Broken")}, `plugin "Broken": args.weight: must be positive`},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(t, "Sort A:2 F B", tc.custom)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// waiter asks to wait in Permit.
type waiter struct {
	plugin
	wait time.Duration
}

func (w waiter) Permit(context.Context, fwk.CycleState, *v1.Pod, string) (*fwk.Status, time.Duration) {
	if w.wait == 0 {
		return nil, 0
	}
	return fwk.NewStatus(fwk.Wait), w.wait
}

func TestPodsWaitForAllWhoAskForIt(t *testing.T) {
	var calls []string
	r := registry(&calls)
	for name, d := range map[string]time.Duration{"W1": time.Hour, "W2": time.Hour, "Now": 0} {
		r[name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return waiter{plugin{name, &calls}, d}, nil
		}
	}
	shared := &framework.Shared{Waiting: framework.NewWaitingPods()}
	p, err := framework.NewProfile(t.Context(), "p", r, &configv1.Plugins{MultiPoint: set("Sort W1 Now W2")}, nil, shared)
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	pod.Name, pod.UID = "a", "a"
	begin := func() fwk.WaitingPod {
		if st := p.Permit(t.Context(), nil, pod, "n"); !st.IsWait() {
			t.Fatal(st)
		}
		return p.GetWaitingPod("a")
	}
	w := begin()
	if got := w.GetPendingPlugins(); !slices.Equal(got, []string{"W1", "W2"}) {
		t.Error(got)
	}
	w.Allow("W1")
	w.Allow("W1")
	if got := w.GetPendingPlugins(); !slices.Equal(got, []string{"W2"}) {
		t.Error(got)
	}
	w.Allow("W2")
	if st := p.WaitOnPermit(t.Context(), pod); !st.IsSuccess() || p.GetWaitingPod("a") != nil {
		t.Error(st)
	}
	w = begin()
	w.Allow("W1")
	if !w.Reject("W2", "no more") || w.Reject("W1", "late") {
		t.Error("the first verdict does not count")
	}
	w.Allow("W2")
	if st := p.WaitOnPermit(t.Context(), pod); st.Code() != fwk.Unschedulable || st.Message() != "no more" || st.Plugin() != "W2" {
		t.Error(st.Code(), st)
	}
	begin().Preempt("Preemption", "preempted")
	if st := p.WaitOnPermit(t.Context(), pod); st.Code() != fwk.Error {
		t.Error(st.Code(), st)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begin()
	cancel()
	if st := p.WaitOnPermit(ctx, pod); st.IsSuccess() || p.GetWaitingPod("a") != nil {
		t.Error(st)
	}
}
