package plugins

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// amounts reads a resource list from words: "cpu=1 memory=1Gi".
func amounts(words string) v1.ResourceList {
	out := v1.ResourceList{}
	for w := range strings.FieldsSeq(words) {
		name, q, _ := strings.Cut(w, "=")
		out[v1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

func makePod(change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}}
	for _, f := range change {
		f(p)
	}
	return p
}

func requests(words string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{Requests: amounts(words)}})
	}
}

func tolerates(t ...v1.Toleration) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Tolerations = t }
}

func hostPort(ip string, protocol v1.Protocol, port int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Ports: []v1.ContainerPort{{HostIP: ip, Protocol: protocol, HostPort: port, ContainerPort: 1}}})
	}
}

// makeNode returns a node with pods on it.
func makeNode(t *testing.T, change func(*v1.Node), pods ...*v1.Pod) *framework.NodeInfo {
	t.Helper()
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Allocatable: amounts("cpu=4 memory=4Gi pods=10")}}
	if change != nil {
		change(n)
	}
	info := framework.NewNodeInfo(n)
	for i, p := range pods {
		p.UID = types.UID(rune('a' + i))
		pi, err := framework.NewPodInfo(p)
		if err != nil {
			t.Fatal(err)
		}
		info.AddPodInfo(pi)
	}
	return info
}

func allocatable(words string) func(*v1.Node) {
	return func(n *v1.Node) { n.Status.Allocatable = amounts(words) }
}

func taints(list ...v1.Taint) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = list }
}

func labelled(pairs ...string) func(*v1.Node) {
	return func(n *v1.Node) {
		n.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			n.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

// filter asks a plugin's PreFilter and then its Filter. "" means yes; "!" before a reason means
// that removing other pods would not help.
func filter(t *testing.T, pl fwk.FilterPlugin, pod *v1.Pod, n fwk.NodeInfo) string {
	t.Helper()
	state := framework.NewCycleState(nil)
	if pre, ok := pl.(fwk.PreFilterPlugin); ok {
		result, st := pre.PreFilter(t.Context(), state, pod, nil)
		switch {
		case st.IsSkip():
			return ""
		case !st.IsSuccess():
			return words(st)
		case !result.AllNodes() && !result.NodeNames.Has(n.Node().Name):
			return "!" + reasonAffinity
		}
	}
	return words(pl.Filter(t.Context(), state, pod, n))
}

func words(st *fwk.Status) string {
	if st.IsSuccess() {
		return ""
	}
	out := strings.Join(st.Reasons(), ", ")
	if st.Code() == fwk.UnschedulableAndUnresolvable {
		return "!" + out
	}
	return out
}

func TestNodeResourcesFit(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	first := func(words string, policy *v1.ContainerRestartPolicy) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{RestartPolicy: policy, Resources: v1.ResourceRequirements{Requests: amounts(words)}})
		}
	}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		node *framework.NodeInfo
		want string
	}{
		"all of it":             {makePod(requests("cpu=4 memory=4Gi")), makeNode(t, nil), ""},
		"what is left":          {makePod(requests("cpu=1")), makeNode(t, nil, makePod(requests("cpu=3"))), ""},
		"more than is left":     {makePod(requests("cpu=1001m")), makeNode(t, nil, makePod(requests("cpu=3"))), "Insufficient cpu"},
		"more than there is":    {makePod(requests("cpu=4001m")), makeNode(t, nil), "!Insufficient cpu"},
		"two are short":         {makePod(requests("cpu=2 memory=2Gi")), makeNode(t, nil, makePod(requests("cpu=3 memory=3Gi"))), "Insufficient cpu, Insufficient memory"},
		"one for ever":          {makePod(requests("cpu=2 memory=5Gi")), makeNode(t, nil, makePod(requests("cpu=3"))), "!Insufficient cpu, Insufficient memory"},
		"nothing on a full one": {makePod(), makeNode(t, nil, makePod(requests("cpu=4 memory=4Gi"))), ""},
		"overcommitted":         {makePod(requests("memory=1Mi")), makeNode(t, allocatable("cpu=1 memory=1Gi pods=10"), makePod(requests("cpu=2"))), ""},
		"too many pods":         {makePod(), makeNode(t, allocatable("cpu=1 pods=1"), makePod()), "Too many pods"},
		"no room for any":       {makePod(), makeNode(t, allocatable("cpu=1")), "Too many pods"},
		"ephemeral storage":     {makePod(requests("ephemeral-storage=1Gi")), makeNode(t, allocatable("pods=10 ephemeral-storage=1Mi")), "!Insufficient ephemeral-storage"},
		"extended resource":     {makePod(requests("example.com/gpu=1")), makeNode(t, allocatable("pods=10 example.com/gpu=1"), makePod(requests("example.com/gpu=1"))), "Insufficient example.com/gpu"},
		"unknown resource":      {makePod(requests("example.com/gpu=1")), makeNode(t, nil), "!Insufficient example.com/gpu"},
		"huge pages":            {makePod(requests("hugepages-2Mi=4Mi")), makeNode(t, allocatable("pods=10 hugepages-2Mi=2Mi")), "!Insufficient hugepages-2Mi"},
		"containers add up":     {makePod(requests("cpu=3"), requests("cpu=2")), makeNode(t, nil), "!Insufficient cpu"},
		"the largest init":      {makePod(requests("cpu=1"), first("cpu=3", nil), first("cpu=4", nil)), makeNode(t, nil), ""},
		"an init too large":     {makePod(requests("cpu=1"), first("cpu=5", nil)), makeNode(t, nil), "!Insufficient cpu"},
		"a sidecar adds":        {makePod(requests("cpu=3"), first("cpu=2", &always)), makeNode(t, nil), "!Insufficient cpu"},
		"overhead adds":         {makePod(requests("cpu=4"), func(p *v1.Pod) { p.Spec.Overhead = amounts("cpu=1m") }), makeNode(t, nil), "!Insufficient cpu"},
		"the pod says": {makePod(requests("cpu=1"), func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{Requests: amounts("cpu=5")} }),
			makeNode(t, nil), "!Insufficient cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := filter(t, fit(t, nil), tc.pod, tc.node); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// fit returns the plugin with a scoring strategy; nil means the default one.
func fit(t *testing.T, s *configv1.ScoringStrategy) NodeResourcesFit {
	t.Helper()
	pl, err := newNodeResourcesFit(t.Context(), &configv1.NodeResourcesFitArgs{ScoringStrategy: s}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, ok := pl.(NodeResourcesFit)
	if !ok {
		t.Fatalf("it is a %T", pl)
	}
	return f
}

func score(t *testing.T, pl fwk.ScorePlugin, pod *v1.Pod, n fwk.NodeInfo) int64 {
	t.Helper()
	state := framework.NewCycleState(nil)
	if pre, ok := pl.(fwk.PreFilterPlugin); ok {
		if _, st := pre.PreFilter(t.Context(), state, pod, nil); !st.IsSuccess() && !st.IsSkip() {
			t.Fatal(st)
		}
	}
	if pre, ok := pl.(fwk.PreScorePlugin); ok {
		if st := pre.PreScore(t.Context(), state, pod, []fwk.NodeInfo{n}); st.IsSkip() {
			return 0
		} else if !st.IsSuccess() {
			t.Fatal(st)
		}
	}
	got, st := pl.Score(t.Context(), state, pod, n)
	if !st.IsSuccess() {
		t.Fatal(st)
	}
	return got
}

// TestLeastAllocated: the score is the mean of what is left of CPU and memory. A pod without
// requests counts for 100m and 200Mi.
func TestLeastAllocated(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		node *framework.NodeInfo
		want int64
	}{
		"empty":              {makePod(requests("cpu=0 memory=0")), makeNode(t, nil), 100},
		"half":               {makePod(requests("cpu=2 memory=2Gi")), makeNode(t, nil), 50},
		"half of one":        {makePod(requests("cpu=2 memory=0")), makeNode(t, nil), 75},
		"with others":        {makePod(requests("cpu=1 memory=1Gi")), makeNode(t, nil, makePod(requests("cpu=1 memory=1Gi"))), 50},
		"full":               {makePod(requests("cpu=4 memory=4Gi")), makeNode(t, nil), 0},
		"asks for nothing":   {makePod(requests("")), makeNode(t, allocatable("cpu=1 memory=1000Mi pods=10")), 85},
		"others ask nothing": {makePod(requests("cpu=0 memory=0")), makeNode(t, allocatable("cpu=1 memory=1000Mi pods=10"), makePod(requests(""))), 85},
	} {
		if got := score(t, fit(t, nil), tc.pod, tc.node); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestTaintToleration(t *testing.T) {
	const no = "!node(s) had untolerated taint(s)"
	gpu := v1.Taint{Key: "gpu", Value: "yes", Effect: v1.TaintEffectNoSchedule}
	effect := func(e v1.TaintEffect) v1.Taint { return v1.Taint{Key: "gpu", Value: "yes", Effect: e} }
	for name, tc := range map[string]struct {
		taints      []v1.Taint
		tolerations []v1.Toleration
		want        string
	}{
		"none":                  {nil, nil, ""},
		"not tolerated":         {[]v1.Taint{gpu}, nil, no},
		"NoExecute":             {[]v1.Taint{effect(v1.TaintEffectNoExecute)}, nil, no},
		"PreferNoSchedule":      {[]v1.Taint{effect(v1.TaintEffectPreferNoSchedule)}, nil, ""},
		"equal":                 {[]v1.Taint{gpu}, []v1.Toleration{{Key: "gpu", Operator: v1.TolerationOpEqual, Value: "yes", Effect: v1.TaintEffectNoSchedule}}, ""},
		"equal by default":      {[]v1.Taint{gpu}, []v1.Toleration{{Key: "gpu", Value: "yes", Effect: v1.TaintEffectNoSchedule}}, ""},
		"another value":         {[]v1.Taint{gpu}, []v1.Toleration{{Key: "gpu", Value: "no", Effect: v1.TaintEffectNoSchedule}}, no},
		"another key":           {[]v1.Taint{gpu}, []v1.Toleration{{Key: "cpu", Operator: v1.TolerationOpExists}}, no},
		"another effect":        {[]v1.Taint{gpu}, []v1.Toleration{{Key: "gpu", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}}, no},
		"exists":                {[]v1.Taint{gpu}, []v1.Toleration{{Key: "gpu", Operator: v1.TolerationOpExists}}, ""},
		"everything":            {[]v1.Taint{gpu, effect(v1.TaintEffectNoExecute)}, []v1.Toleration{{Operator: v1.TolerationOpExists}}, ""},
		"only one of two":       {[]v1.Taint{gpu, {Key: "other", Effect: v1.TaintEffectNoSchedule}}, []v1.Toleration{{Key: "gpu", Operator: v1.TolerationOpExists}}, no},
		"for a while, at least": {[]v1.Taint{effect(v1.TaintEffectNoExecute)}, []v1.Toleration{{Key: "gpu", Operator: v1.TolerationOpExists, TolerationSeconds: new(int64(1))}}, ""},
	} {
		if got := filter(t, TaintToleration{}, makePod(tolerates(tc.tolerations...)), makeNode(t, taints(tc.taints...))); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestFewerTaintsAreBetter(t *testing.T) {
	prefer := func(key string) v1.Taint { return v1.Taint{Key: key, Effect: v1.TaintEffectPreferNoSchedule} }
	pod := makePod(tolerates(v1.Toleration{Key: "c", Operator: v1.TolerationOpExists}))
	var scores fwk.NodeScoreList
	for _, list := range [][]v1.Taint{nil, {prefer("a")}, {prefer("a"), prefer("b"), prefer("c")}, {{Key: "x", Effect: v1.TaintEffectNoSchedule}}} {
		scores = append(scores, fwk.NodeScore{Score: score(t, TaintToleration{}, pod, makeNode(t, taints(list...)))})
	}
	TaintToleration{}.NormalizeScore(t.Context(), nil, pod, scores)
	for i, want := range []int64{100, 50, 0, 100} {
		if scores[i].Score != want {
			t.Errorf("node %d has %d, want %d", i, scores[i].Score, want)
		}
	}
}

func TestNodeAffinity(t *testing.T) {
	expr := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
		return v1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	term := func(exprs ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: exprs}
	}
	named := func(names ...string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{expr("metadata.name", v1.NodeSelectorOpIn, names...)}}
	}
	required := func(terms ...v1.NodeSelectorTerm) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	selector := func(key, value string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
	}
	const no = "!" + reasonAffinity
	here := labelled("zone", "a", "cores", "8")
	for name, tc := range map[string]struct {
		pod  []func(*v1.Pod)
		want string
	}{
		"none":                   {nil, ""},
		"selector":               {[]func(*v1.Pod){selector("zone", "a")}, ""},
		"another value":          {[]func(*v1.Pod){selector("zone", "b")}, no},
		"no such label":          {[]func(*v1.Pod){selector("disk", "a")}, no},
		"in":                     {[]func(*v1.Pod){required(term(expr("zone", v1.NodeSelectorOpIn, "a", "b")))}, ""},
		"not in":                 {[]func(*v1.Pod){required(term(expr("zone", v1.NodeSelectorOpNotIn, "a")))}, no},
		"not in, without it":     {[]func(*v1.Pod){required(term(expr("disk", v1.NodeSelectorOpNotIn, "a")))}, ""},
		"exists":                 {[]func(*v1.Pod){required(term(expr("zone", v1.NodeSelectorOpExists)))}, ""},
		"does not exist":         {[]func(*v1.Pod){required(term(expr("zone", v1.NodeSelectorOpDoesNotExist)))}, no},
		"greater":                {[]func(*v1.Pod){required(term(expr("cores", v1.NodeSelectorOpGt, "7")))}, ""},
		"not greater":            {[]func(*v1.Pod){required(term(expr("cores", v1.NodeSelectorOpGt, "8")))}, no},
		"less":                   {[]func(*v1.Pod){required(term(expr("cores", v1.NodeSelectorOpLt, "9")))}, ""},
		"no number":              {[]func(*v1.Pod){required(term(expr("zone", v1.NodeSelectorOpGt, "7")))}, no},
		"both of a term":         {[]func(*v1.Pod){required(term(expr("zone", v1.NodeSelectorOpIn, "a"), expr("disk", v1.NodeSelectorOpExists)))}, no},
		"one of two terms":       {[]func(*v1.Pod){required(term(expr("disk", v1.NodeSelectorOpExists)), term(expr("zone", v1.NodeSelectorOpExists)))}, ""},
		"no term":                {[]func(*v1.Pod){required()}, no},
		"an empty term":          {[]func(*v1.Pod){required(term())}, no},
		"selector and affinity":  {[]func(*v1.Pod){selector("zone", "a"), required(term(expr("disk", v1.NodeSelectorOpExists)))}, no},
		"affinity and selector":  {[]func(*v1.Pod){selector("zone", "b"), required(term(expr("zone", v1.NodeSelectorOpExists)))}, no},
		"by name":                {[]func(*v1.Pod){required(named("n"))}, ""},
		"by another name":        {[]func(*v1.Pod){required(named("m"))}, no},
		"by one of two names":    {[]func(*v1.Pod){required(named("m"), named("n"))}, ""},
		"by names that conflict": {[]func(*v1.Pod){required(v1.NodeSelectorTerm{MatchFields: append(named("n").MatchFields, named("m").MatchFields...)})}, "!pod affinity terms conflict"},
		"by name or label":       {[]func(*v1.Pod){required(named("m"), term(expr("zone", v1.NodeSelectorOpExists)))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := filter(t, NodeAffinity{}, makePod(tc.pod...), makeNode(t, here)); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestPreferredNodesScoreByWeight(t *testing.T) {
	prefer := func(weight int32, key string) v1.PreferredSchedulingTerm {
		return v1.PreferredSchedulingTerm{Weight: weight, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpExists}}}}
	}
	pod := makePod(func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{prefer(10, "a"), prefer(30, "b")}}}
	})
	var scores fwk.NodeScoreList
	for _, l := range [][]string{nil, {"a", ""}, {"b", ""}, {"a", "", "b", ""}} {
		scores = append(scores, fwk.NodeScore{Score: score(t, NodeAffinity{}, pod, makeNode(t, labelled(l...)))})
	}
	NodeAffinity{}.NormalizeScore(t.Context(), nil, pod, scores)
	for i, want := range []int64{0, 25, 75, 100} {
		if scores[i].Score != want {
			t.Errorf("node %d has %d, want %d", i, scores[i].Score, want)
		}
	}
	if got := score(t, NodeAffinity{}, makePod(), makeNode(t, labelled("a", ""))); got != 0 {
		t.Errorf("a pod that prefers nothing gives %d", got)
	}
}

func TestNodePorts(t *testing.T) {
	const no = "node(s) didn't have free ports for the requested pod ports"
	always := v1.ContainerRestartPolicyAlways
	asInit := func(policy *v1.ContainerRestartPolicy) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
			p.Spec.InitContainers[0].RestartPolicy = policy
		}
	}
	for name, tc := range map[string]struct {
		has, wants *v1.Pod
		want       string
	}{
		"no port":                 {makePod(hostPort("", "TCP", 80)), makePod(), ""},
		"the same":                {makePod(hostPort("", "TCP", 80)), makePod(hostPort("", "TCP", 80)), no},
		"another":                 {makePod(hostPort("", "TCP", 80)), makePod(hostPort("", "TCP", 81)), ""},
		"another protocol":        {makePod(hostPort("", "TCP", 80)), makePod(hostPort("", "UDP", 80)), ""},
		"TCP by default":          {makePod(hostPort("", "TCP", 80)), makePod(hostPort("", "", 80)), no},
		"all and one address":     {makePod(hostPort("", "TCP", 80)), makePod(hostPort("127.0.0.1", "TCP", 80)), no},
		"one address and all":     {makePod(hostPort("127.0.0.1", "TCP", 80)), makePod(hostPort("0.0.0.0", "TCP", 80)), no},
		"two addresses":           {makePod(hostPort("127.0.0.1", "TCP", 80)), makePod(hostPort("127.0.0.2", "TCP", 80)), ""},
		"the same address":        {makePod(hostPort("127.0.0.1", "TCP", 80)), makePod(hostPort("127.0.0.1", "TCP", 80)), no},
		"one of several":          {makePod(hostPort("", "TCP", 80)), makePod(hostPort("", "TCP", 79), hostPort("", "TCP", 80)), no},
		"a sidecar's":             {makePod(hostPort("", "TCP", 80), asInit(&always)), makePod(hostPort("", "TCP", 80)), no},
		"an init container's":     {makePod(hostPort("", "TCP", 80), asInit(nil)), makePod(hostPort("", "TCP", 80)), ""},
		"of the container itself": {makePod(hostPort("", "TCP", 0)), makePod(hostPort("", "TCP", 0)), ""},
	} {
		if got := filter(t, NodePorts{}, tc.wants, makeNode(t, nil, tc.has)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestPortsAreFreeOnceThePodIsGone(t *testing.T) {
	has := makePod(hostPort("", "TCP", 80), requests("cpu=4"))
	n := makeNode(t, nil, has)
	if err := n.RemovePod(klog.Background(), has); err != nil {
		t.Fatal(err)
	}
	if got := filter(t, NodePorts{}, makePod(hostPort("", "TCP", 80)), n); got != "" {
		t.Errorf("port: %q", got)
	}
	if got := filter(t, fit(t, nil), makePod(requests("cpu=4")), n); got != "" {
		t.Errorf("CPU: %q", got)
	}
}

func TestNodeUnschedulable(t *testing.T) {
	cordon := func(n *v1.Node) { n.Spec.Unschedulable = true }
	const no, key = "!node(s) were unschedulable", v1.TaintNodeUnschedulable
	for name, tc := range map[string]struct {
		node *framework.NodeInfo
		pod  *v1.Pod
		want string
	}{
		"open":           {makeNode(t, nil), makePod(), ""},
		"cordoned":       {makeNode(t, cordon), makePod(), no},
		"tolerated":      {makeNode(t, cordon), makePod(tolerates(v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule})), ""},
		"all tolerated":  {makeNode(t, cordon), makePod(tolerates(v1.Toleration{Operator: v1.TolerationOpExists})), ""},
		"another effect": {makeNode(t, cordon), makePod(tolerates(v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})), no},
	} {
		if got := filter(t, NodeUnschedulable{}, tc.pod, tc.node); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestNodeName(t *testing.T) {
	for name, want := range map[string]string{"": "", "n": "", "m": "!node(s) didn't match the requested node name"} {
		pod := makePod(func(p *v1.Pod) { p.Spec.NodeName = name })
		if got := filter(t, NodeName{}, pod, makeNode(t, nil)); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestSchedulingGates(t *testing.T) {
	gates := func(names ...string) *v1.Pod {
		return makePod(func(p *v1.Pod) {
			for _, n := range names {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, v1.PodSchedulingGate{Name: n})
			}
		})
	}
	for want, pod := range map[string]*v1.Pod{
		"": gates(), "!waiting for scheduling gates: [a]": gates("a"), "!waiting for scheduling gates: [a b]": gates("a", "b"),
	} {
		if got := words(SchedulingGates{}.PreEnqueue(t.Context(), pod)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPrioritySort(t *testing.T) {
	queued := func(priority *int32, second int64) *framework.QueuedPodInfo {
		pi, err := framework.NewPodInfo(makePod(func(p *v1.Pod) { p.Spec.Priority = priority }))
		if err != nil {
			t.Fatal(err)
		}
		return &framework.QueuedPodInfo{PodInfo: pi, Timestamp: time.Unix(second, 0)}
	}
	for name, tc := range map[string]struct {
		a, b *framework.QueuedPodInfo
		want bool
	}{
		"higher":             {queued(new(int32(2)), 2), queued(new(int32(1)), 1), true},
		"lower":              {queued(new(int32(1)), 1), queued(new(int32(2)), 2), false},
		"older":              {queued(new(int32(1)), 1), queued(new(int32(1)), 2), true},
		"younger":            {queued(new(int32(1)), 2), queued(new(int32(1)), 1), false},
		"none is zero":       {queued(nil, 2), queued(new(int32(-1)), 1), true},
		"equal in all":       {queued(nil, 1), queued(nil, 1), false},
		"none is not higher": {queued(nil, 1), queued(new(int32(1)), 2), false},
	} {
		if got := (PrioritySort{}).Less(tc.a, tc.b); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestWhatMakesPodsSchedulableAgain checks which events wake a pod that a plugin rejected.
func TestWhatMakesPodsSchedulableAgain(t *testing.T) {
	type events = map[fwk.EventResource]fwk.ActionType
	for _, tc := range []struct {
		plugin fwk.EnqueueExtensions
		want   events
	}{
		{NodeResourcesFit{}, events{fwk.Pod: fwk.Delete | fwk.UpdatePodScaleDown, fwk.Node: fwk.Add | fwk.UpdateNodeAllocatable}},
		{NodePorts{}, events{fwk.Pod: fwk.Delete, fwk.Node: fwk.Add}},
		{NodeAffinity{}, events{fwk.Node: fwk.Add | fwk.UpdateNodeLabel}},
		{NodeName{}, events{fwk.Node: fwk.Add}},
		{NodeUnschedulable{}, events{fwk.Node: fwk.Add | fwk.UpdateNodeTaint, fwk.Pod: fwk.UpdatePodToleration}},
		{TaintToleration{}, events{fwk.Node: fwk.Add | fwk.UpdateNodeTaint, fwk.Pod: fwk.UpdatePodToleration}},
		{SchedulingGates{}, events{}},
	} {
		list, err := tc.plugin.EventsToRegister(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := events{}
		for _, e := range list {
			got[e.Event.Resource] |= e.Event.ActionType
		}
		if len(got) != len(tc.want) {
			t.Errorf("%T: %v, want %v", tc.plugin, got, tc.want)
		}
		for r, want := range tc.want {
			if got[r] != want {
				t.Errorf("%T: %s %v, want %v", tc.plugin, r, got[r], want)
			}
		}
	}
}

// TestScoringStrategies has the examples of upstream's documentation (Resource Bin Packing) among others.
func TestScoringStrategies(t *testing.T) {
	ratio := func(resources string, points ...int32) *configv1.ScoringStrategy {
		s := &configv1.ScoringStrategy{Type: configv1.RequestedToCapacityRatio, RequestedToCapacityRatio: &configv1.RequestedToCapacityRatioParam{}}
		for name, q := range amounts(resources) {
			s.Resources = append(s.Resources, configv1.ResourceSpec{Name: string(name), Weight: q.Value()})
		}
		for i := 0; i < len(points); i += 2 {
			s.RequestedToCapacityRatio.Shape = append(s.RequestedToCapacityRatio.Shape, configv1.UtilizationShapePoint{Utilization: points[i], Score: points[i+1]})
		}
		return s
	}
	const gpu = "intel.com/foo=5 cpu=3 memory=1"
	for name, tc := range map[string]struct {
		strategy *configv1.ScoringStrategy
		node     *framework.NodeInfo
		want     int64
	}{
		"most allocated":     {&configv1.ScoringStrategy{Type: configv1.MostAllocated}, makeNode(t, nil, makePod(requests("cpu=1 memory=1Gi"))), (75 + 31) / 2},
		"least of CPU alone": {&configv1.ScoringStrategy{Type: configv1.LeastAllocated, Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}}}, makeNode(t, nil), 50},
		// documented: foo (2+1)/4 → 75 → 7, memory (256+256)/1024 → 50 → 5, cpu (2+1)/8 → 37 → 3; weighted 5, 1, 3
		"bin packing, first node": {ratio(gpu, 0, 0, 100, 10), makeNode(t, allocatable("pods=9 intel.com/foo=4 memory=1Gi cpu=8"),
			makePod(requests("intel.com/foo=1 memory=256Mi cpu=1"))), (5*75 + 1*50 + 3*37 + 4) / 9},
		"bin packing, second node": {ratio(gpu, 0, 0, 100, 10), makeNode(t, allocatable("pods=9 intel.com/foo=8 memory=1Gi cpu=8"),
			makePod(requests("intel.com/foo=2 memory=512Mi cpu=6"))), (5*50 + 1*75 + 3*100 + 4) / 9},
		"least by a shape":      {ratio("cpu=1", 0, 10, 100, 0), makeNode(t, nil), 50},
		"a shape with a corner": {ratio("cpu=1", 0, 0, 40, 10, 100, 0), makeNode(t, nil), 84},
	} {
		p := makePod(requests("intel.com/foo=2 memory=256Mi cpu=2"))
		if got := score(t, fit(t, tc.strategy), p, tc.node); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// TestContainersWithoutRequestsCountByAShape: a ratio with a shape assumed nothing of them, unlike the other strategies.
func TestContainersWithoutRequestsCountByAShape(t *testing.T) {
	s := &configv1.ScoringStrategy{
		Type: configv1.RequestedToCapacityRatio, Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}},
		RequestedToCapacityRatio: &configv1.RequestedToCapacityRatioParam{Shape: []configv1.UtilizationShapePoint{
			{Utilization: 0, Score: 0}, {Utilization: 100, Score: 10},
		}},
	}
	n := makeNode(t, allocatable("cpu=1 memory=1Gi pods=9"), makePod(requests("")))
	if got := score(t, fit(t, s), makePod(requests("cpu=200m"), requests("")), n); got != 40 { // 100m for each of them
		t.Errorf("the score is %d", got)
	}
}

func TestIgnoredResources(t *testing.T) {
	for _, args := range []*configv1.NodeResourcesFitArgs{{IgnoredResources: []string{"example.com/gpu"}}, {IgnoredResourceGroups: []string{"example.com"}}} {
		pl, err := newNodeResourcesFit(t.Context(), args, nil)
		if err != nil {
			t.Fatal(err)
		}
		f, ok := pl.(NodeResourcesFit)
		if !ok {
			t.Fatalf("%T", pl)
		}
		if got := filter(t, f, makePod(requests("example.com/gpu=1")), makeNode(t, nil)); got != "" {
			t.Error(got)
		}
		if got := filter(t, f, makePod(requests("example.org/gpu=1")), makeNode(t, nil)); got == "" {
			t.Error("another group is ignored, too")
		}
	}
}

// TestBalancedAllocation: 75 if the pod leaves the balance as it is.
func TestBalancedAllocation(t *testing.T) {
	pl, err := newBalancedAllocation(t.Context(), &configv1.NodeResourcesBalancedAllocationArgs{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, ok := pl.(NodeResourcesBalancedAllocation)
	if !ok {
		t.Fatalf("%T", pl)
	}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		node *framework.NodeInfo
		want int64
	}{
		"in balance":     {makePod(requests("cpu=2 memory=2Gi")), makeNode(t, nil), 75},
		"out of balance": {makePod(requests("cpu=4")), makeNode(t, nil), 50},
		"into balance":   {makePod(requests("memory=4Gi")), makeNode(t, nil, makePod(requests("cpu=4"))), 100},
		"asks nothing":   {makePod(), makeNode(t, nil), 0}, // it is skipped
	} {
		if got := score(t, b, tc.pod, tc.node); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// TestTwoSharesAreRoundedAsUpstreamDoes: by the sum of squares it would be 65.
func TestTwoSharesAreRoundedAsUpstreamDoes(t *testing.T) {
	if got := balance([]float64{0.1, 0.8}); got != 64 {
		t.Errorf("%d, want 64", got)
	}
}

func TestImageNames(t *testing.T) {
	for in, want := range map[string]string{"busybox": "busybox:latest", "localhost:5000/a": "localhost:5000/a:latest", "a:1": "a:1", "r:1/a@sha256:0": "r:1/a@sha256:0"} {
		if got := withTag(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestAddedAffinity(t *testing.T) {
	expr := func(key string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpExists}}}
	}
	pl, err := newNodeAffinity(t.Context(), &configv1.NodeAffinityArgs{AddedAffinity: &v1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution:  &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{expr("ours")}},
		PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 7, Preference: expr("new")}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	na, ok := pl.(NodeAffinity)
	if !ok {
		t.Fatalf("%T", pl)
	}
	if got := filter(t, na, makePod(), makeNode(t, nil)); got != "!"+reasonAddedAffinity {
		t.Error(got)
	}
	if got := filter(t, na, makePod(), makeNode(t, labelled("ours", ""))); got != "" {
		t.Error(got)
	}
	if got := score(t, na, makePod(), makeNode(t, labelled("ours", "", "new", ""))); got != 7 {
		t.Error(got)
	}
}
