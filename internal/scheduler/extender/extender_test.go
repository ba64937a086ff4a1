package extender

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// serve answers every request with what answer makes of its path and body.
func serve(t *testing.T, c configv1.Extender, answer func(path, body string) (int, string)) *HTTP {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost {
			t.Errorf("%s: %v", r.Method, err)
		}
		code, text := answer(r.URL.Path, string(body))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text) // the client says what is wrong
	}))
	t.Cleanup(s.Close)
	c.URLPrefix = s.URL + "/scheduler/"
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func nodes(names ...string) (out []fwk.NodeInfo) {
	for _, name := range names {
		out = append(out, framework.NewNodeInfo(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return out
}

func names(list []fwk.NodeInfo) string {
	var out []string
	for _, n := range list {
		out = append(out, n.Node().Name)
	}
	return strings.Join(out, " ")
}

func TestFilter(t *testing.T) {
	for name, tc := range map[string]struct {
		cache  bool
		code   int
		answer string
		want   string
		err    string
	}{
		"nodes":           {false, 200, `{"Nodes":{"items":[{"metadata":{"name":"b"}}]},"FailedNodes":{"a":"hot"}}`, "b", ""},
		"names":           {true, 200, `{"NodeNames":["b","a"]}`, "b a", ""},
		"none":            {true, 200, `{"NodeNames":[]}`, "", ""},
		"an error":        {true, 200, `{"Error":"not today"}`, "", "not today"},
		"another status":  {true, 500, ``, "", "code 500"},
		"garbage":         {true, 200, `<html>`, "", "the answer of extender"},
		"an unknown node": {true, 200, `{"NodeNames":["x"]}`, "", `claims a filtered node "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			e := serve(t, configv1.Extender{FilterVerb: "filter", NodeCacheCapable: tc.cache}, func(path, body string) (int, string) {
				var args extenderv1.ExtenderArgs
				if err := json.Unmarshal([]byte(body), &args); err != nil || path != "/scheduler/filter" || args.Pod.Name != "p" {
					t.Errorf("%s %s: %v", path, body, err)
				}
				if (args.NodeNames != nil) != tc.cache || (args.Nodes != nil) == tc.cache {
					t.Errorf("it was asked about %v and %v", args.NodeNames, args.Nodes)
				}
				return tc.code, tc.answer
			})
			left, failed, _, err := e.Filter(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, nodes("a", "b"))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || names(left) != tc.want || name == "nodes" && failed["a"] != "hot" {
				t.Errorf("%s, %v, %v", names(left), failed, err)
			}
		})
	}
}

func TestOtherVerbs(t *testing.T) {
	c := configv1.Extender{PrioritizeVerb: "rank", BindVerb: "bind", PreemptVerb: "preempt", Weight: 3, NodeCacheCapable: true}
	e := serve(t, c, func(path, body string) (int, string) {
		switch path {
		case "/scheduler/rank":
			return 200, `[{"Host":"a","Score":7}]`
		case "/scheduler/bind":
			if strings.Contains(body, `"Node":"full"`) {
				return 200, `{"Error":"full"}`
			}
			return 200, `{}`
		}
		return 200, `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"v"}],"NumPDBViolations":2}}}`
	})
	list, weight, err := e.Prioritize(&v1.Pod{}, nodes("a"))
	if err != nil || weight != 3 || len(*list) != 1 || (*list)[0].Score != 7 {
		t.Error(list, weight, err)
	}
	if err := e.Bind(&v1.Binding{Target: v1.ObjectReference{Name: "a"}}); err != nil {
		t.Error(err)
	}
	if err := e.Bind(&v1.Binding{Target: v1.ObjectReference{Name: "full"}}); err == nil || err.Error() != "full" {
		t.Error(err)
	}
	there := nodes("a")
	victim, err := framework.NewPodInfo(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}})
	if err != nil {
		t.Fatal(err)
	}
	there[0].AddPodInfo(victim)
	asked := map[string]*extenderv1.Victims{"a": {Pods: []*v1.Pod{victim.GetPod()}}}
	left, err := e.ProcessPreemption(&v1.Pod{}, asked, lister{there[0]})
	if err != nil || left["a"] == nil || len(left["a"].Pods) != 1 || left["a"].NumPDBViolations != 2 {
		t.Error(left, err)
	}
	if _, err := e.ProcessPreemption(&v1.Pod{}, asked, lister{nodes("a")[0]}); err == nil {
		t.Error("a victim that is not there is taken")
	}
}

type lister struct{ fwk.NodeInfo }

func (l lister) List() ([]fwk.NodeInfo, error)                                 { return []fwk.NodeInfo{l.NodeInfo}, nil }
func (l lister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error)             { return nil, nil }
func (l lister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) { return nil, nil }
func (l lister) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return nil, nil
}
func (l lister) Get(string) (fwk.NodeInfo, error) { return l.NodeInfo, nil }

func TestManagedResources(t *testing.T) {
	e, err := New(configv1.Extender{URLPrefix: "http://x", ManagedResources: []configv1.ExtenderManagedResource{
		{Name: "example.com/gpu", IgnoredByScheduler: true}, {Name: "example.com/fpga"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	asks := func(name v1.ResourceName) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{name: {}}}}}}}
	}
	if !e.IsInterested(asks("example.com/gpu")) || e.IsInterested(asks("cpu")) || e.IsInterested(&v1.Pod{}) {
		t.Error("it is interested in the wrong pods")
	}
	if got := e.Ignored(); len(got) != 1 || got[0] != "example.com/gpu" {
		t.Error(got)
	}
}

func TestWrongConfigurations(t *testing.T) {
	for want, c := range map[string]configv1.Extender{
		"urlPrefix: Required":      {},
		"weight: Invalid value: 0": {URLPrefix: "http://x", PrioritizeVerb: "rank"},
		"managedResources[0].name": {URLPrefix: "http://x", ManagedResources: []configv1.ExtenderManagedResource{{Name: "cpu"}}},
		"managedResources[1].name": {URLPrefix: "http://x", ManagedResources: []configv1.ExtenderManagedResource{{Name: "a/b"}, {Name: "a/b"}}},
		"tlsConfig: ":              {URLPrefix: "https://x", EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAFile: "/no/such/file"}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
