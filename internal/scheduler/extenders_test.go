package scheduler_test

import (
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
)

// asked is an extender that answers from tables. A verb without a table is not its own.
type asked struct {
	refuses   map[string]string // by node
	prefers   map[string]int64  // by node, up to 10
	preempts  func(map[string]*extenderv1.Victims) map[string]*extenderv1.Victims
	binds     func(*v1.Binding) error
	fails     error
	ignorable bool
	// only is the name of the one pod that it is interested in; "" means all.
	only string
}

func (*asked) Name() string                  { return "asked" }
func (a *asked) IsIgnorable() bool           { return a.ignorable }
func (a *asked) IsFilter() bool              { return a.refuses != nil || a.fails != nil }
func (a *asked) IsPrioritizer() bool         { return a.prefers != nil }
func (a *asked) IsBinder() bool              { return a.binds != nil }
func (a *asked) SupportsPreemption() bool    { return a.preempts != nil }
func (a *asked) IsInterested(p *v1.Pod) bool { return a.only == "" || a.only == p.Name }
func (a *asked) Bind(b *v1.Binding) error    { return a.binds(b) }
func (a *asked) Filter(_ *v1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodeInfo, extenderv1.FailedNodesMap, extenderv1.FailedNodesMap, error) {
	var left []fwk.NodeInfo
	for _, n := range nodes {
		if _, no := a.refuses[n.Node().Name]; !no {
			left = append(left, n)
		}
	}
	return left, a.refuses, nil, a.fails
}

func (a *asked) Prioritize(*v1.Pod, []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	var list extenderv1.HostPriorityList
	for node, score := range a.prefers {
		list = append(list, extenderv1.HostPriority{Host: node, Score: score})
	}
	return &list, 10, nil
}

func (a *asked) ProcessPreemption(_ *v1.Pod, v map[string]*extenderv1.Victims, _ fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	return a.preempts(v), nil
}

func extended(e ...fwk.Extender) scheduler.Config {
	c := scheduler.DefaultConfig()
	c.Extenders = e
	return c
}

func TestExtenders(t *testing.T) {
	const nobody = " preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
	for name, tc := range map[string]struct {
		asked asked
		where string
		msg   string
	}{
		"refuses one":          {asked{refuses: map[string]string{"n1": "too hot"}}, "n2", ""},
		"refuses all":          {asked{refuses: map[string]string{"n1": "too hot", "n2": "too hot"}}, "", "0/2 nodes are available: 2 too hot." + nobody},
		"prefers one":          {asked{prefers: map[string]int64{"n2": 10}}, "n2", ""},
		"prefers the other":    {asked{prefers: map[string]int64{"n1": 10}}, "n1", ""},
		"fails":                {asked{fails: errors.New("no answer")}, "", ""},
		"fails, and may":       {asked{fails: errors.New("no answer"), ignorable: true, prefers: map[string]int64{"n1": 10}}, "n1", ""},
		"cares for other pods": {asked{refuses: map[string]string{"n1": "too hot", "n2": "too hot"}, prefers: map[string]int64{"n1": 10}, only: "q"}, "n2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// n2 has more room, so it is the better one if nobody is asked.
				c := startConfig(t, extended(&tc.asked), same, node("n1", "2"), node("n2", "4"))
				defer c.stop()
				c.create(pod("p", "1"))
				c.wantNode("p", tc.where)
				if tc.msg != "" {
					c.wantMessage("p", tc.msg)
				}
			})
		})
	}
}

// TestWhatAnExtenderRejectedIsTriedAgain: nobody knows what helps it, so whatever happens may.
func TestWhatAnExtenderRejectedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asked{refuses: map[string]string{"n1": "too hot"}}
		c := startConfig(t, extended(a), same, node("n1", "2"))
		defer c.stop()
		c.create(pod("p", "1"))
		c.settle()
		a.refuses = map[string]string{}
		c.create(pod("q", "0"))
		c.settle()
		c.wantNode("p", "n1")
	})
}

func TestAnExtenderHasASayInPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asked{preempts: func(v map[string]*extenderv1.Victims) map[string]*extenderv1.Victims {
			return map[string]*extenderv1.Victims{"n2": v["n2"]}
		}}
		c := startConfig(t, extended(a), same,
			node("n1", "1"), node("n2", "1"), pod("a", "1", on("n1")), pod("b", "1", on("n2"), priority(1)))
		defer c.stop()
		c.create(pod("p", "1", priority(2)))
		c.settle()
		c.wantNode("p", "n2")
	})
}

func TestAnExtenderBinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *cluster
		bound := ""
		a := &asked{only: "p", binds: func(b *v1.Binding) error {
			bound = b.Name + " to " + b.Target.Name
			return c.client.CoreV1().Pods(b.Namespace).Bind(t.Context(), b, metav1.CreateOptions{})
		}}
		c = startConfig(t, extended(a), same, node("n1", "1"))
		defer c.stop()
		c.create(pod("p", "100m"))
		c.create(pod("q", "100m"))
		c.wantNode("p", "n1")
		c.wantNode("q", "n1")
		if bound != "p to n1" {
			t.Errorf("it bound %q", bound)
		}
	})
}
