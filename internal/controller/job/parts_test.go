package job

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIndexSets(t *testing.T) {
	for _, tt := range []struct {
		text  string
		limit int
		want  string
		n     int
	}{
		{"", 9, "", 0}, {"0", 9, "0", 1}, {"0,1", 9, "0,1", 2}, {"0,1,2", 9, "0-2", 3}, {"1-3,5", 9, "1-3,5", 4}, {"1-3,5", 3, "1,2", 2},
		{"x,2,-,4-x,3-1,-5", 9, "2", 1}, {"5,1-2", 9, "1,2,5", 3}, {"0-8", 5, "0-4", 5}, {"7", 7, "", 0}, {"1-3,2-4", 9, "1-4", 4},
	} {
		x := parseIndexes(tt.text, tt.limit)
		if x.String() != tt.want || x.len() != tt.n {
			t.Errorf("%q below %d: %q of %d, want %q of %d", tt.text, tt.limit, x, x.len(), tt.want, tt.n)
		}
		for i := range 12 {
			found := false
			for _, s := range x {
				found = found || s.first <= i && i <= s.last
			}
			if x.has(i) != found {
				t.Errorf("%q has %d: %v", x, i, x.has(i))
			}
		}
	}
	if got := parseIndexes("1,3-4", 9).missing(9, 7); len(got) != 4 || got[0] != 0 || got[3] != 6 {
		t.Errorf("missing: %v", got)
	}
	if got := parseIndexes("1,3-4,9", 10).missing(2, 5); len(got) != 2 || got[1] != 2 {
		t.Errorf("missing: %v", got)
	}
	if n := parseIndexes("0-5,8", 9).common(parseIndexes("1,3-8", 9)); n != 5 {
		t.Errorf("%d are common", n)
	}
}

// A set of a hundred thousand indexes is read in no time.
func FuzzParseIndexes(f *testing.F) {
	f.Add("0,2-5,7", 9)
	f.Add(strings.Repeat("1,", 100)+"5-3", 4)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		x := parseIndexes(text, limit)
		for i, s := range x {
			if s.first < 0 || s.first > s.last || s.last >= limit || i > 0 && s.first <= x[i-1].last+1 {
				t.Errorf("%q: %v", text, x)
			}
		}
		if again := parseIndexes(x.String(), limit); again.String() != x.String() {
			t.Errorf("%q becomes %q", x, again)
		}
	})
}

func TestPodOfAnIndex(t *testing.T) {
	j := build(3, 1, perIndex(2))
	j.Name = strings.Repeat("n", 60)
	j.Spec.Template.Spec.InitContainers = []v1.Container{{Name: "i", Env: []v1.EnvVar{{Name: indexVariable, Value: "mine"}}}}
	p := podFor(j, newPod{2, pod("last", index("2"), failedOnceBefore())})
	env := p.Spec.Containers[0].Env
	if len(env) != 1 || env[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']" {
		t.Errorf("env: %+v", env)
	}
	if env := p.Spec.InitContainers[0].Env; len(env) != 1 || env[0].Value != "mine" {
		t.Errorf("the template's own: %+v", env)
	}
	if p.GenerateName != strings.Repeat("n", 55)+"-2-" || p.Spec.Hostname != j.Name+"-2" {
		t.Errorf("names: %s, %s", p.GenerateName, p.Spec.Hostname)
	}
	if p.Labels[batchv1.JobCompletionIndexAnnotation] != "2" || indexOf(p) != 2 || p.Annotations[batchv1.JobIndexFailureCountAnnotation] != "2" {
		t.Errorf("%v %v", p.Labels, p.Annotations)
	}
	if !isTracked(p) || !metav1.IsControlledBy(p, j) {
		t.Errorf("%v %v", p.Finalizers, p.OwnerReferences)
	}
	if len(j.Spec.Template.Spec.Containers[0].Env) != 0 {
		t.Error("the template was changed")
	}
	ignoring := build(1, 1, perIndex(0), policy(onExit(batchv1.PodFailurePolicyActionIgnore, 1)))
	p = podFor(ignoring, newPod{0, pod("last", index("0"), failed)})
	if p.Annotations[batchv1.JobIndexFailureCountAnnotation] != "0" || p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] != "1" {
		t.Errorf("ignored: %v", p.Annotations)
	}
}

func TestEndOfAPod(t *testing.T) {
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	sidecar := func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}, {Name: "i"}}
		s, i := ended(0, at(9)), ended(0, at(20))
		s.Name, i.Name = "s", "i"
		p.Status.InitContainerStatuses = []v1.ContainerStatus{s, i}
	}
	notReady := func(p *v1.Pod) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, LastTransitionTime: metav1.NewTime(at(4))}}
	}
	for name, tt := range map[string]struct {
		pod  *v1.Pod
		want time.Time
	}{
		"its last container":         {pod("a", exits(1, at(5)), notReady), at(5)},
		"a sidecar ends later":       {pod("a", exits(1, at(5)), sidecar), at(9)},
		"it ceased to be ready":      {pod("a", notReady, terminating), at(4)},
		"its deletion was asked for": {pod("a", terminating), at(0)},
		"it tells nothing":           {pod("a"), at(-3600)},
	} {
		if got := endOf(tt.pod); !got.Equal(tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// What a pod does before it ends can wait; all else that happens to it cannot.
func TestProgressOfAPod(t *testing.T) {
	running := pod("p")
	changed := func(change func(*v1.Pod)) *v1.Pod {
		p := running.DeepCopy()
		change(p)
		return p
	}
	for name, tt := range map[string]struct {
		old, obj any
		want     bool
	}{
		"it is ready": {running, changed(func(p *v1.Pod) {
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		}), true},
		"it is bound":            {changed(pending), running, true},
		"it is new":              {nil, running, false},
		"it is gone":             {running, nil, false},
		"another has its name":   {running, changed(func(p *v1.Pod) { p.UID = "other" }), false},
		"it has ended":           {running, changed(func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }), false},
		"it is being deleted":    {running, changed(func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }), false},
		"its finalizer is gone":  {running, changed(func(p *v1.Pod) { p.Finalizers = nil }), false},
		"it is labelled anew":    {running, changed(func(p *v1.Pod) { p.Labels = nil }), false},
		"it belongs to no job":   {running, changed(func(p *v1.Pod) { p.OwnerReferences = nil }), false},
		"it ends, then is freed": {changed(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }), changed(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed; p.Finalizers = nil }), false},
	} {
		if got := isProgress(tt.old, tt.obj); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
