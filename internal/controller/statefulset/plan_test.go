package statefulset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

type change func(*appsv1.StatefulSet)

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }

func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}

func noDetails(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate = nil }

func from(ordinal int32) change {
	return func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: ordinal} }
}

func above(partition int32) change {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &partition }
}

func most(n intstr.IntOrString) change {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = &n }
}

func minReady(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 30 }
func dying(s *appsv1.StatefulSet)    { s.DeletionTimestamp = new(metav1.NewTime(now)) }

func counted(current int32) change {
	return func(s *appsv1.StatefulSet) { s.Status.CurrentReplicas = current }
}

func set(replicas int32, changes ...change) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "set", Generation: 3},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: "svc", PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32)},
			},
		},
	}
	for _, c := range changes {
		c(s)
	}
	return s
}

func template(image string) *v1.PodTemplateSpec {
	return &v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
}

// given returns the facts of a set whose template is v2 and was v1. pods are words, by ordinal: a
// revision and a state (ready, just ready, unready, pending, failed, succeeded, dying), or - for none.
func given(s *appsv1.StatefulSet, pods string) facts {
	f := facts{set: s, now: now, current: revision{"v1", template("v1")}, update: revision{"v2", template("v2")}}
	f.claim = func(string) *v1.PersistentVolumeClaim { return nil }
	f.backoff = func(string) time.Duration { return 0 }
	for i, word := range strings.Fields(pods) {
		if word == "-" {
			continue
		}
		rev, state, _ := strings.Cut(word, ":")
		f.pods = append(f.pods, podIn(s, i, rev, state))
	}
	return f
}

func podIn(s *appsv1.StatefulSet, ordinal int, rev, state string) *v1.Pod {
	name := s.Name + "-" + strconv.Itoa(ordinal)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{
			"app": "web", appsv1.StatefulSetRevisionLabel: rev, appsv1.StatefulSetPodNameLabel: name,
		}},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
	ready := func(since time.Duration) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since))}}
	}
	switch state {
	case "ready":
		ready(time.Hour)
	case "just":
		ready(10 * time.Second)
	case "dying":
		ready(time.Hour)
		p.DeletionTimestamp = new(metav1.NewTime(now))
	case "pending":
		p.Status.Phase = v1.PodPending
	case "failed":
		p.Status.Phase = v1.PodFailed
	case "succeeded":
		p.Status.Phase = v1.PodSucceeded
	case "gone":
		p.Status.Phase, p.DeletionTimestamp = v1.PodFailed, new(metav1.NewTime(now))
	case "unready":
	default:
		panic(state)
	}
	return p
}

// doing says what a plan does: phases are divided by bars.
func doing(p plan) string {
	var phases []string
	for _, steps := range p.phases {
		var words []string
		for _, s := range steps {
			words = append(words, wordsOf(s)...)
		}
		phases = append(phases, strings.Join(words, " "))
	}
	return strings.Join(phases, " | ")
}

func wordsOf(s step) (out []string) {
	n := strings.TrimPrefix(s.pod.Name, "web-")
	for _, c := range s.newClaims {
		out = append(out, "claim="+c.Name)
	}
	switch {
	case s.create != nil:
		out = append(out, "+"+n+":"+revisionOf(s.create))
	case s.remove != nil:
		out = append(out, "-"+n)
	case s.update != nil:
		out = append(out, "~"+n)
	}
	for _, c := range s.ownClaims {
		var kinds []string
		for _, r := range c.OwnerReferences {
			kinds = append(kinds, r.Kind+"/"+r.Name)
		}
		out = append(out, c.Name+"->"+strings.Join(kinds, ","))
	}
	for _, err := range s.refused {
		out = append(out, "no:"+err.Error())
	}
	for _, name := range s.conflicts {
		out = append(out, "conflict:"+name)
	}
	return out
}

func TestPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		set  *appsv1.StatefulSet
		pods string
		want string
	}{
		// Ordered.
		"the first pod":                            {set(3), "", "+0:v2"},
		"the first is not ready":                   {set(3), "v2:unready", ""},
		"the first is pending":                     {set(3), "v2:pending", ""},
		"the second":                               {set(3), "v2:ready", "+1:v2"},
		"the second must wait for minReadySeconds": {set(3, minReady), "v2:just", ""},
		"the first is ready long enough":           {set(3, minReady), "v2:ready", "+1:v2"},
		"all are there":                            {set(2), "v2:ready v2:ready", ""},
		"the first ordinal is 5":                   {set(2, from(5)), "- - - - - v2:ready", "+6:v2"},
		"the ordinals have moved up":               {set(2, from(1)), "v2:ready v2:ready", "+2:v2"},
		"the ordinals have moved, all are there":   {set(2, from(1)), "v2:ready v2:ready v2:ready", "-0"},
		"a gap is filled before anything else":     {set(3), "v2:ready - v2:unready v2:ready", "+1:v2"},
		"one that is ending is waited for":         {set(3), "v2:ready v2:dying", ""},
		"one that has failed is replaced":          {set(3), "v2:failed", "-0"},
		"one that has succeeded is replaced":       {set(3), "v2:ready v2:succeeded v2:ready", "-1"},
		"a failed one that goes is waited for":     {set(3), "v2:gone", ""},
		"nothing is made for a dying set":          {set(3, dying), "v2:ready", ""},
		"none":                                     {set(0), "", ""},

		// Scaling down.
		"the highest goes first":                             {set(1), "v2:ready v2:ready v2:ready", "-2"},
		"one after the other":                                {set(1), "v2:ready v2:ready v2:dying", ""},
		"not while a lower one is not ready":                 {set(2), "v2:ready v2:unready v2:ready", ""},
		"a ready one goes before a lower unready one":        {set(1), "v2:ready v2:unready v2:ready", "-2"},
		"an unready one waits for a lower one":               {set(1), "v2:ready v2:unready v2:unready", ""},
		"an unready one goes if it is the lowest unready":    {set(1), "v2:ready v2:ready v2:unready", "-2"},
		"one that has ended goes before a lower unready one": {set(1), "v2:ready v2:unready v2:failed", "-2"},
		"the higher of two that have ended":                  {set(0), "v2:failed v2:ready v2:failed", "-2"},
		"one that has ended goes though a lower one has too": {set(0), "v2:failed v2:succeeded", "-1"},
		"within minReadySeconds the same":                    {set(1, minReady), "v2:ready v2:just v2:just", ""},
		"scaling goes before updating":                       {set(2), "v1:ready v1:ready v1:ready", "-2"},

		// Rolling updates.
		"from the top":                               {set(3), "v1:ready v1:ready v1:ready", "-2"},
		"the next waits":                             {set(3), "v1:ready v1:ready v2:unready", ""},
		"the next":                                   {set(3), "v1:ready v1:ready v2:ready", "-1"},
		"the next waits for minReadySeconds":         {set(3, minReady), "v1:ready v1:ready v2:just", ""},
		"what was removed comes back new":            {set(3), "v1:ready v1:ready -", "+2:v2"},
		"above the partition":                        {set(3, above(2)), "v1:ready v1:ready v2:ready", ""},
		"above the partition, not yet":               {set(3, above(2)), "v1:ready v1:ready v1:ready", "-2"},
		"below the partition comes back old":         {set(3, above(2)), "v1:ready - v2:ready", "+1:v1"},
		"at the partition comes back new":            {set(3, above(1)), "v1:ready - v2:ready", "+1:v2"},
		"a partition counts from the first ordinal":  {set(3, above(2), from(1)), "- v1:ready v1:ready v1:ready", "-3"},
		"a partition above all":                      {set(2, above(9)), "v1:ready v1:ready", ""},
		"on delete":                                  {set(2, onDelete), "v1:ready v1:ready", ""},
		"on delete comes back new":                   {set(2, onDelete), "v1:ready -", "+1:v2"},
		"without details comes back old":             {set(2, noDetails, counted(2)), "v1:ready -", "+1:v1"},
		"without details, not counted":               {set(2, noDetails, counted(1)), "v1:ready -", "+1:v2"},
		"two at once":                                {set(4, most(intstr.FromInt32(2))), "v1:ready v1:ready v1:ready v1:ready", "-3 -2"},
		"two at once, one waits":                     {set(4, most(intstr.FromInt32(2)), parallel), "v1:ready v1:ready v1:ready v2:unready", "-2"},
		"a share":                                    {set(4, most(intstr.FromString("50%"))), "v1:ready v1:ready v1:ready v1:ready", "-3 -2"},
		"a share of less than one":                   {set(4, most(intstr.FromString("10%"))), "v1:ready v1:ready v1:ready v1:ready", "-3"},
		"a broken old one holds an ordered rollout":  {set(3), "v1:ready v1:ready v1:unready", ""},
		"a broken new one holds an ordered rollback": {set(3), "v2:ready v2:ready v1:pending", ""},

		// Parallel.
		"all at once":                        {set(3, parallel), "", "+0:v2 +1:v2 +2:v2"},
		"whatever is missing":                {set(3, parallel), "v2:unready - v2:dying", "+1:v2"},
		"all that are too many":              {set(1, parallel), "v2:unready v2:ready v2:dying v2:pending", "-3 -1"},
		"made and removed":                   {set(2, parallel, from(1)), "v2:ready v2:ready", "+2:v2 | -0"},
		"failed ones":                        {set(3, parallel), "v2:failed v2:ready v2:succeeded", "-0 -2"},
		"an update goes one by one":          {set(3, parallel), "v1:ready v1:ready v1:ready", "-2"},
		"an update waits for the last":       {set(3, parallel), "v1:ready v1:ready v2:unready", ""},
		"an update waits for what is made":   {set(3, parallel), "v1:ready v1:ready -", "+2:v2"},
		"a broken old one goes":              {set(1, parallel), "v1:unready", "-0"},
		"broken old ones go, good ones stay": {set(4, parallel, most(intstr.FromInt32(2))), "v1:unready v1:pending v1:ready v1:ready", "-1 -0"},
		"broken old ones, and one more":      {set(5, parallel, most(intstr.FromInt32(3))), "v1:unready v1:unready v1:ready v1:ready v1:ready", "-1 -0 -4"},
		"what is ending counts":              {set(3, parallel), "v1:ready v1:ready v1:dying", ""},
		"ending and broken":                  {set(5, parallel, most(intstr.FromInt32(3))), "v1:ready v1:ready v1:ready v1:unready v1:dying", "-3 -2"},
		"a broken one below the partition":   {set(5, parallel, above(2)), "v1:ready v1:unready v1:ready v1:ready v1:ready", ""},
		"within minReadySeconds":             {set(3, parallel, minReady), "v1:ready v1:ready v1:just", "-2"},
		"a failed old one goes once":         {set(2, parallel), "v1:ready v1:failed", "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := doing(planFor(given(tt.set, tt.pods))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		set  *appsv1.StatefulSet
		pods string
		want string
	}{
		"none":                  {set(2), "", "0 ready 0 available 0 v1 0 v2 0"},
		"some":                  {set(3), "v2:ready v2:unready v2:pending", "3 ready 1 available 1 v1 0 v2 3"},
		"in a rollout":          {set(3), "v1:ready v2:ready v2:unready", "3 ready 2 available 2 v1 1 v2 2"},
		"about to remove":       {set(3), "v1:ready v1:ready v1:ready", "3 ready 3 available 3 v1 2 v2 0"},
		"of a third revision":   {set(2), "v0:ready v0:ready", "2 ready 2 available 2 v1 0 v2 0"},
		"ending":                {set(3), "v1:ready v1:ready v1:dying", "3 ready 3 available 3 v1 2 v2 0"},
		"just ready":            {set(2, minReady), "v2:ready v2:just", "2 ready 2 available 1 v2 2 v2 2"},
		"the rollout is over":   {set(2), "v2:ready v2:ready", "2 ready 2 available 2 v2 2 v2 2"},
		"one too many is there": {set(1), "v2:ready v2:ready", "2 ready 2 available 2 v1 0 v2 2"},
		"on delete, never over": {set(2, onDelete), "v2:ready v2:ready", "2 ready 2 available 2 v1 0 v2 2"},
		"a dying set":           {set(3, dying), "v1:ready v1:ready", "2 ready 2 available 2 v1 2 v2 0"},
		"not a member":          {set(1), "", "0 ready 0 available 0 v1 0 v2 0"},
	} {
		t.Run(name, func(t *testing.T) {
			f := given(tt.set, tt.pods)
			stranger := podIn(tt.set, 0, "v2", "ready")
			stranger.Name = "web-00"
			f.pods = append(f.pods, stranger)
			st := planFor(f).status
			got := fmt.Sprintf("%d ready %d available %d %s %d %s %d", st.Replicas, st.ReadyReplicas, st.AvailableReplicas,
				st.CurrentRevision, st.CurrentReplicas, st.UpdateRevision, st.UpdatedReplicas)
			if got != tt.want || st.ObservedGeneration != 3 || st.CollisionCount == nil {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestRecheck(t *testing.T) {
	if p := planFor(given(set(2, minReady), "v2:just v2:ready")); p.recheck != 20*time.Second {
		t.Errorf("recheck after %v", p.recheck)
	}
	if p := planFor(given(set(2), "v2:just v2:ready")); p.recheck != 0 {
		t.Errorf("recheck after %v", p.recheck)
	}
}

// A pod that ends again and again is not replaced without end.
func TestBackoff(t *testing.T) {
	for _, s := range []*appsv1.StatefulSet{set(2), set(2, parallel)} {
		f := given(s, "v2:failed v2:ready")
		if p := planFor(f); doing(p) != "-0" || !slices.Equal(p.ended, []string{"web-0"}) {
			t.Errorf("at first: %s, %v", doing(p), p.ended)
		}
		f.backoff = func(string) time.Duration { return 7 * time.Second }
		if p := planFor(f); doing(p) != "" || len(p.ended) > 0 || p.recheck != 7*time.Second {
			t.Errorf("later: %s, %v, again after %v", doing(p), p.ended, p.recheck)
		}
	}
}

// A set that should have two billion pods takes neither the memory nor the time for them.
func TestABillionReplicas(t *testing.T) {
	for _, policy := range []change{parallel, func(*appsv1.StatefulSet) {}} {
		s := set(2_000_000_000, policy)
		f := given(s, "v2:ready")
		last := podIn(s, 1_999_999_999, "v2", "ready")
		f.pods = append(f.pods, last)
		p := planFor(f)
		want := burst
		if s.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement {
			want = 1
		}
		if got := len(p.phases[0]); got != want {
			t.Errorf("%s: %d steps", s.Spec.PodManagementPolicy, got)
		}
	}
}

func TestNewPod(t *testing.T) {
	s := set(3, from(4))
	s.Spec.VolumeClaimTemplates = []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	f := given(s, "")
	f.update.template.Spec.Volumes = []v1.Volume{{Name: "data"}, {Name: "tmp"}}
	p := newPod(f, 5)
	if p.Name != "web-5" || p.GenerateName != "web-" || p.Spec.Hostname != "web-5" || p.Spec.Subdomain != "svc" || !metav1.IsControlledBy(p, s) {
		t.Errorf("%+v", p.ObjectMeta)
	}
	want := map[string]string{
		"app": "web", "statefulset.kubernetes.io/pod-name": "web-5", "apps.kubernetes.io/pod-index": "5", "controller-revision-hash": "v2",
	}
	if fmt.Sprint(p.Labels) != fmt.Sprint(want) {
		t.Errorf("labels %v", p.Labels)
	}
	var volumes []string
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			volumes = append(volumes, v.PersistentVolumeClaim.ClaimName)
		} else {
			volumes = append(volumes, v.Name)
		}
	}
	if !slices.Equal(volumes, []string{"data-web-5", "tmp"}) {
		t.Errorf("volumes %v", volumes)
	}
	if len(f.update.template.Labels) != 1 {
		t.Errorf("the template was changed: %v", f.update.template.Labels)
	}
}

func TestOrdinals(t *testing.T) {
	s := set(3)
	for name, want := range map[string]int{"web-0": 0, "web-12": 12, "web-": -1, "web": -1, "web-x": -1, "web-01": -1, "web--1": -1, "web-+1": -1, "web-a-1": -1, "web2-1": -1, "web-99999999999": -1} {
		n, ok := ordinalOf(s, name)
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%s: %d, want %d", name, n, want)
		}
	}
}
