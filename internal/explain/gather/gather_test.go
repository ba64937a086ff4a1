package gather

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestParse(t *testing.T) {
	for arg, want := range map[string]string{
		"web": "Pod", "po/web": "Pod", "deploy/web": "Deployment", "deployments.apps/web": "Deployment", "RS/web": "ReplicaSet",
		"sts/web": "StatefulSet", "ds/web": "DaemonSet", "job/web": "Job", "cj/web": "CronJob", "cronjobs/web": "CronJob",
		"services/web": "Service", "hpa/web": "HorizontalPodAutoscaler", "pvc/web": "PersistentVolumeClaim",
		"": "", "pod/": "", "pod/a/b": "", "secret/web": "",
	} {
		got, err := Parse(arg)
		if got.Kind != want || (err != nil) != (want == "") || err == nil && got.Name != "web" {
			t.Errorf("%q: %+v, %v", arg, got, err)
		}
	}
}

var web = map[string]string{"app": "web"}

func meta(name, owner string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: web}
	if owner != "" {
		m.OwnerReferences = []metav1.OwnerReference{{Name: owner, UID: types.UID("uid-" + owner), Controller: new(true)}}
	}
	return m
}

// workload returns a Deployment with its ReplicaSet and pod, and others' that have the same labels.
func workload() []runtime.Object {
	selector := &metav1.LabelSelector{MatchLabels: web}
	set := func(name, owner string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: meta(name, owner), Spec: appsv1.ReplicaSetSpec{Selector: selector}}
	}
	return []runtime.Object{
		&appsv1.Deployment{ObjectMeta: meta("web", ""), Spec: appsv1.DeploymentSpec{Selector: selector}},
		set("rs", "web"), set("others", "else"),
		&v1.Pod{ObjectMeta: meta("its", "rs")}, &v1.Pod{ObjectMeta: meta("not", "others")}, &v1.Pod{ObjectMeta: meta("free", "")},
	}
}

// asked is a client that also answers at paths outside of the API.
type asked struct {
	kubernetes.Interface
	code int
	body string
}

func (a asked) CoreV1() typedcore.CoreV1Interface { return askedCore{a.Interface.CoreV1(), a} }

type askedCore struct {
	typedcore.CoreV1Interface
	asked asked
}

func (c askedCore) RESTClient() rest.Interface {
	return &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		Client: restfake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: c.asked.code, Body: io.NopCloser(strings.NewReader(c.asked.body))}, nil
		}),
	}
}

// noScheduler is a client of a cluster whose scheduler does not report.
func noScheduler(objs ...runtime.Object) asked {
	return asked{fake.NewClientset(objs...), http.StatusNotFound, "404 page not found"}
}

// What the scheduler reports is told; that another one is at work is not worth a word.
func TestTheSchedulerIsAsked(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Status: v1.PodStatus{
		Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}},
	}}
	for name, tc := range map[string]struct {
		code  int
		body  string
		nodes int
		note  string
	}{
		"reports":         {200, `{"apiVersion": "report.wherry.dev/v1", "kind": "SchedulingReport", "queue": {"place": "backoff"}, "nodes": [{"count": 3}]}`, 1, "it is backoff"},
		"another one":     {404, "404 page not found", 0, ""},
		"of later":        {200, `{"apiVersion": "report.wherry.dev/v9", "kind": "SchedulingReport"}`, 0, "it reports as report.wherry.dev/v9"},
		"may not be seen": {403, `{"kind": "Status", "status": "Failure", "message": "you may not", "reason": "Forbidden", "code": 403}`, 0, "could not be asked: you may not"},
	} {
		x, err := Explain(t.Context(), asked{fake.NewClientset(pod), tc.code, tc.body}, Target{"Pod", "ns", "p"})
		if notes := strings.Join(x.Notes, "; "); err != nil || len(x.Nodes) != tc.nodes || (notes == "") != (tc.note == "") || !strings.Contains(notes, tc.note) {
			t.Errorf("%s: %v: %d groups, %q", name, err, len(x.Nodes), notes)
		}
	}
}

// The pods of a workload are those that it controls, not all that have its labels; and the one that
// holds it up is explained along.
func TestDeploymentWithItsPods(t *testing.T) {
	client := noScheduler(workload()...)
	target := Target{"Deployment", "ns", "web"}
	x, err := Explain(t.Context(), client, target)
	if err != nil || len(x.Pods) != 1 || x.Pods[0].Name != "its" || x.Pods[0].Summary != "It has no node yet." {
		t.Errorf("%v: %+v", err, x)
	}
	w, err := WorkloadOf(t.Context(), client, target)
	if err != nil || w.Object.GetName() != "web" || len(w.Sets) != 1 || len(w.Pods) != 1 || w.Pods[0].Name != "its" {
		t.Errorf("%v: %+v", err, w)
	}
	if _, err := WorkloadOf(t.Context(), client, Target{"Service", "ns", "web"}); err == nil {
		t.Error("a service has no pods of its own")
	}
}

// What may not be read is named; but without pods nothing can be said.
func TestWhatMayNotBeRead(t *testing.T) {
	for resource, fails := range map[string]bool{"events": false, "poddisruptionbudgets": false, "pods": true, "replicasets": true} {
		client := fake.NewClientset(workload()...)
		client.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("may not be read")
		})
		x, err := Explain(t.Context(), asked{client, http.StatusNotFound, ""}, Target{"Deployment", "ns", "web"})
		if (err != nil) != fails {
			t.Errorf("%s: %v", resource, err)
		}
		if !fails && !strings.Contains(strings.Join(x.Notes, ";"), "could not be read: may not be read") {
			t.Errorf("%s: %q", resource, x.Notes)
		}
	}
}

// Each kind that Parse knows is explained, or said not to be there.
func TestEachKindIsAskedFor(t *testing.T) {
	for kind, names := range words {
		target, err := Parse(names[0] + "/none")
		if err != nil || target.Kind != kind {
			t.Fatal(target, err)
		}
		target.Namespace = "ns"
		if _, err := Explain(t.Context(), fake.NewClientset(), target); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := WorkloadOf(t.Context(), fake.NewClientset(), target); err == nil {
			t.Errorf("%s: pods of nothing", kind)
		}
	}
}
