package gather

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
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

// The pods of a workload are those that it controls, not all that have its labels; and the one that
// holds it up is explained along.
func TestDeploymentWithItsPods(t *testing.T) {
	client := fake.NewClientset(workload()...)
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
		x, err := Explain(t.Context(), client, Target{"Deployment", "ns", "web"})
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
