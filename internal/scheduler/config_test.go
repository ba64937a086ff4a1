package scheduler_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler"
)

// load reads a configuration of which the kind and the version are added.
func load(t *testing.T, body string) (scheduler.Config, []string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	head := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	if strings.HasPrefix(body, "apiVersion:") {
		head = ""
	}
	if err := os.WriteFile(path, []byte(head+body), 0o600); err != nil {
		t.Fatal(err)
	}
	return scheduler.LoadConfig(path)
}

func TestConfiguration(t *testing.T) {
	c, warnings, err := load(t, `
parallelism: 4
percentageOfNodesToScore: 30
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
enableProfiling: false
enableContentionProfiling: true
delayCacheUntilActive: true
clientConnection: {kubeconfig: /etc/k}
leaderElection: {leaderElect: false, resourceName: mine}
profiles:
- schedulerName: packing
  percentageOfNodesToScore: 50
  plugins:
    score:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit, weight: 5}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 2}]}
  - name: Mine
    args: {answer: 42}
- schedulerName: plain
extenders:
- {urlPrefix: "http://127.0.0.1:1/x", filterVerb: filter, managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "delayCacheUntilActive has no effect") }) || len(warnings) != 1 {
		t.Error(warnings)
	}
	if c.Parallelism != 4 || !c.NoProfiling || c.ContentionProfiling || c.PercentageOfNodesToScore != 30 || c.InitialBackoff != 2*time.Second || c.MaxBackoff != 20*time.Second ||
		c.Kubeconfig != "/etc/k" || c.LeaderElection.LeaderElect || c.LeaderElection.ResourceName != "mine" || len(c.Extenders) != 1 {
		t.Errorf("%+v", c)
	}
	if len(c.Profiles) != 2 || c.Profiles[0].SchedulerName != "packing" || *c.Profiles[0].PercentageOfNodesToScore != 50 {
		t.Fatalf("%+v", c.Profiles)
	}
	fit, ok := c.Profiles[0].Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs)
	if !ok || fit.ScoringStrategy.Type != configv1.MostAllocated || fit.ScoringStrategy.Resources[0].Weight != 2 {
		t.Errorf("%+v", c.Profiles[0].Args)
	}
	if mine, ok := c.Profiles[0].Args["Mine"].(*runtime.Unknown); !ok || string(mine.Raw) != `{"answer":42}` {
		t.Errorf("%+v", c.Profiles[0].Args["Mine"])
	}
	if _, err := scheduler.New(t.Context(), fake.NewClientset(), c); err != nil {
		t.Error(err)
	}
}

// TestWrongConfigurations: each names the field.
func TestWrongConfigurations(t *testing.T) {
	plugin := func(name, args string) string {
		return "profiles:\n- pluginConfig:\n  - name: " + name + "\n    args: " + args + "\n"
	}
	for name, tc := range map[string]struct{ body, want string }{
		"another kind":           {"apiVersion: v1\nkind: Pod\n", "want a KubeSchedulerConfiguration"},
		"an older version":       {"apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n", "want a KubeSchedulerConfiguration"},
		"an unknown field":       {"parallelismus: 3\n", `unknown field "parallelismus"`},
		"a field twice":          {"parallelism: 3\nparallelism: 4\n", "already set"},
		"parallelism":            {"parallelism: 0\n", "parallelism: Invalid value: 0"},
		"percentage":             {"percentageOfNodesToScore: 101\n", "percentageOfNodesToScore: Invalid value: 101"},
		"a profile's":            {"profiles: [{percentageOfNodesToScore: -1}]\n", "profiles[0].percentageOfNodesToScore: Invalid value: -1"},
		"initial back-off":       {"podInitialBackoffSeconds: 0\n", "podInitialBackoffSeconds: Invalid value: 0"},
		"maximal back-off":       {"podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4\n", "podMaxBackoffSeconds: Invalid value: 4"},
		"an extender":            {"extenders: [{urlPrefix: x, prioritizeVerb: rank}]\n", "extenders[0].weight"},
		"two binders":            {"extenders: [{urlPrefix: x, bindVerb: b}, {urlPrefix: z, bindVerb: b}]\n", "extenders[1].bindVerb"},
		"arguments twice":        {"profiles: [{pluginConfig: [{name: A}, {name: A}]}]\n", "profiles[0]: pluginConfig[1]: Duplicate value"},
		"an unknown argument":    {plugin("NodeAffinity", "{added: {}}"), `unknown field "added"`},
		"a negative weight":      {"profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: -1}]}}}]\n", "profiles[0]: plugins.score: NodeAffinity: weight"},
		"placements":             {"profiles: [{plugins: {placementScore: {enabled: [{name: NodeResourcesFit}]}}}]\n", "plugins.placementScore takes the feature gate TopologyAwareWorkloadScheduling"},
		"pod groups":             {"profiles: [{plugins: {podGroupPostFilter: {enabled: [{name: DefaultPreemption}]}}}]\n", "plugins.podGroupPostFilter takes the feature gate GenericWorkload"},
		"a profile twice":        {"profiles: [{schedulerName: a}, {schedulerName: a}]\n", "a is listed twice"},
		"a profile with no name": {"profiles: [{schedulerName: \"\"}]\n", "no schedulerName"},
		"strategy":               {plugin("NodeResourcesFit", "{scoringStrategy: {type: Best}}"), "scoringStrategy.type"},
		"weight of a resource":   {plugin("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 101}]}}"), "scoringStrategy.resources[0].weight"},
		"no shape":               {plugin("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}"), "scoringStrategy.requestedToCapacityRatio"},
		"an empty shape":         {plugin("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}}"), "requestedToCapacityRatio.shape: Required"},
		"a shape out of order":   {plugin("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 50, score: 1}, {utilization: 50, score: 2}]}}}"), "shape[1].utilization"},
		"ignoring CPU":           {plugin("NodeResourcesFit", "{ignoredResources: [cpu]}"), "ignoredResources"},
		"ignoring a name":        {plugin("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}"), "ignoredResourceGroups"},
		"hard affinity":          {plugin("InterPodAffinity", "{hardPodAffinityWeight: 101}"), "hardPodAffinityWeight"},
		"system's defaults":      {plugin("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}]}"), "defaultConstraints"},
		"a default's skew":       {plugin("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}]}"), "defaultConstraints[0].maxSkew"},
		"a default's selector":   {plugin("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}]}"), "defaultConstraints[0].labelSelector"},
		"candidates":             {plugin("DefaultPreemption", "{minCandidateNodesPercentage: 101}"), "minCandidateNodesPercentage"},
		"no candidates":          {plugin("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"), "minCandidateNodesPercentage"},
		"added affinity":         {plugin("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Nope}]}]}}}"), "addedAffinity.requiredDuring"},
		"not a plugin of ours":   {"profiles: [{plugins: {multiPoint: {enabled: [{name: Mine}]}}}]\n", `unknown plugin "Mine"`},
		"without its gate":       {"profiles: [{plugins: {multiPoint: {enabled: [{name: GangScheduling}]}}}]\n", `plugin "GangScheduling": it takes the feature gate GenericWorkload`},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := load(t, tc.body)
			if err == nil {
				_, err = scheduler.New(t.Context(), fake.NewClientset(), c)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}
