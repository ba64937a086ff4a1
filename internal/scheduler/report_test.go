package scheduler_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"wherry.dev/internal/api/report"
)

// reported asks over HTTP, as `wherry explain` does.
func (c *cluster) reported(name string) *report.Scheduling {
	c.t.Helper()
	w := httptest.NewRecorder()
	c.sched.ServeHTTP(w, httptest.NewRequest(http.MethodGet, report.SchedulingPath+name, http.NoBody))
	if w.Code == http.StatusNotFound {
		return nil
	}
	out := &report.Scheduling{}
	if err := json.Unmarshal(w.Body.Bytes(), out); err != nil || out.UID != types.UID(name) {
		c.t.Fatalf("%v: %s", err, w.Body)
	}
	return out
}

// TestReportSaysWhyNoNodeFitsAndWhatWouldHelp in words, for groups of nodes.
func TestReportSaysWhyNoNodeFitsAndWhatWouldHelp(t *testing.T) {
	tainted := func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoSchedule}} }
	never := func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) }
	for name, tc := range map[string]struct {
		cluster []runtime.Object
		pod     *v1.Pod
		// want has a line for each group and each fix: "names: reasons (plugin)", "- fix".
		want []string
	}{
		"resources, the closest node": {
			[]runtime.Object{node("a", "1"), node("b", "2"), node("c", "500m"), pod("x", "800m", on("a")), pod("y", "1500m", on("b")), pod("z", "200m", on("b"))},
			pod("p", "1"),
			[]string{
				"a, b: Insufficient cpu (NodeResourcesFit)", "- 700m CPU more on node b, free or added",
				"- end default/y on node b, or give the pod a priority above 0, so that it preempts them",
				"c: Insufficient cpu (NodeResourcesFit)", "- a larger node: c has 500m CPU too little even when it is empty",
			},
		},
		"who would have to go": {
			[]runtime.Object{node("a", "2"), pod("x", "1", on("a"), priority(5)), pod("y", "1", on("a"), priority(3))},
			pod("p", "2"),
			[]string{
				"a: Insufficient cpu (NodeResourcesFit)", "- 2 CPU more on node a, free or added",
				"- end default/y and default/x on node a, or give the pod a priority above 5, so that it preempts them",
			},
		},
		"never preempts": {
			[]runtime.Object{node("a", "1"), pod("x", "1", on("a"))}, pod("p", "1", priority(10), never),
			[]string{"a: Insufficient cpu (NodeResourcesFit)", "- 1 CPU more on node a, free or added", "- end default/x on node a: the pod's preemptionPolicy is Never"},
		},
		"taint": {
			[]runtime.Object{node("a", "1", tainted)}, pod("p", "1"),
			[]string{"a: node(s) had untolerated taint(s) (TaintToleration)", "- remove the taint: kubectl taint node a k=v:NoSchedule-", "- tolerate the taint k=v:NoSchedule"},
		},
		"cordon": {
			[]runtime.Object{node("a", "1", func(n *v1.Node) { n.Spec.Unschedulable = true })}, pod("p", "1"),
			[]string{"a: node(s) were unschedulable (NodeUnschedulable)", "- uncordon the node: kubectl uncordon a"},
		},
		"labels": {
			[]runtime.Object{node("a", "1")}, pod("p", "1", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
			[]string{"a: node(s) didn't match Pod's node affinity/selector (NodeAffinity)", "- label the node as the pod asks: disk=ssd"},
		},
		"an extended resource that is nowhere": {
			[]runtime.Object{node("a", "1")}, pod("p", "0", asks(extendedGPU, "2")),
			[]string{
				"a: Insufficient example.com/gpu (NodeResourcesFit)", "- a larger node: a has 2 example.com/gpu too little even when it is empty",
				"- a device class with extendedResourceName example.com/gpu, and a driver that offers its devices on the node",
			},
		},
		"devices of an extended resource": {
			[]runtime.Object{node("a", "1"), standsFor(extendedGPU)}, pod("p", "0", asks(extendedGPU, "2")),
			[]string{
				"a: cannot allocate all claims (DynamicResources)",
				"- free devices on node a, as example.com/gpu stands for: end a pod that has them, or have a driver offer more (kubectl get resourceslices)",
				"- other requests, or device classes that select more",
			},
		},
		"a claim without a volume": {
			[]runtime.Object{node("a", "1"), &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}},
			pod("p", "0", func(p *v1.Pod) {
				p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
			}),
			[]string{
				"a: pod has unbound immediate PersistentVolumeClaims (VolumeBinding)",
				"- a volume for claim c (wherry explain pvc/c), where the node can reach it",
			},
		},
		"more than devices are lacking": {
			[]runtime.Object{node("a", "1"), standsFor(extendedGPU)}, pod("p", "2", asks(extendedGPU, "2")),
			[]string{"a: Insufficient cpu (NodeResourcesFit)", "- a larger node: a has 1 CPU too little even when it is empty"},
		},
		"port": {
			[]runtime.Object{node("a", "1"), pod("x", "0", port(8080), on("a"))}, pod("p", "0", port(8080)),
			[]string{
				"a: node(s) didn't have free ports for the requested pod ports (NodePorts)", "- end pod default/x, which has port 8080/TCP of node a",
				"- end default/x on node a, or give the pod a priority above 0, so that it preempts them",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, tc.cluster...)
				defer c.stop()
				c.create(tc.pod)
				r := c.reported("p")
				if r == nil || r.Queue == nil || r.Queue.Place != "unschedulable" || r.Queue.Attempts != 1 || !r.Queue.Retry.Equal(time.Now().Add(5*time.Minute)) {
					t.Fatalf("%+v", r)
				}
				var got []string
				for _, g := range r.Nodes {
					got = append(got, strings.Join(g.Names, ", ")+": "+strings.Join(g.Reasons, ", ")+" ("+g.Plugin+")")
					for _, f := range g.Fixes {
						got = append(got, "- "+f)
					}
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
				}
				if len(r.Queue.WaitsFor) == 0 || len(r.Queue.WaitsFor[0].Events) == 0 || !strings.Contains(r.Queue.WaitsFor[0].Events[0], "/") {
					t.Errorf("waits for %+v", r.Queue.WaitsFor)
				}
				if again := c.reported("p"); again.Queue.Attempts != 1 || c.get("p").Spec.NodeName != "" {
					t.Error("to be asked has changed something")
				}
			})
		})
	}
}

// TestReportOnAPodThatFitsNow and waits for the end of its back-off, because binding it has failed.
func TestReportOnAPodThatFitsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("a", "500m"), node("b", "1"))
		defer c.stop()
		c.client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			return a.GetSubresource() == "binding", nil, errors.New("the storage is away")
		})
		c.create(pod("p", "1"))
		r := c.reported("p")
		if r == nil || r.Queue.Place != "backoff" || len(r.Nodes) != 2 || r.Nodes[0].Plugin != "" || len(r.Nodes[0].Reasons) != 0 || r.Nodes[0].Names[0] != "b" {
			t.Errorf("%+v", r)
		}
	})
}

// TestReportSaysHowANodeWasChosen and forgets it in the end.
func TestReportSaysHowANodeWasChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("a", "1"), node("b", "2"), node("c", "4"), node("d", "100m"))
		defer c.stop()
		c.create(pod("p", "500m"))
		r := c.reported("p")
		if r == nil || r.Queue != nil || r.Choice == nil || r.Choice.Node != "c" || r.Choice.Nodes != 4 || r.Choice.Feasible != 3 || len(r.Choice.Best) != 3 {
			t.Fatalf("%+v", r)
		}
		for i, n := range r.Choice.Best {
			var sum int64
			for _, p := range n.Parts {
				sum += p.Score
			}
			if want := []string{"c", "b", "a"}[i]; n.Node != want || n.Total != sum || len(n.Parts) < 3 {
				t.Errorf("place %d: %+v", i, n)
			}
		}
		var log strings.Builder
		c.create(pod("large", "9"))
		c.sched.Dump(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
		for _, want := range []string{`pod="default/p"`, `node="d"`, `pod="default/large" place="unschedulable"`, `rejectedBy=["NodeResourcesFit"]`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the dump does not have %s:\n%s", want, log.String())
			}
		}
		if c.reported("nobody") != nil {
			t.Error("there is a report on a pod that does not exist")
		}
	})
}
