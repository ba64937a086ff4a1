package deployment

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/pods"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func template(image string) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
}

type change func(*appsv1.Deployment)

// web is a Deployment of generation 2 with that image, which may have 25 % more and 25 % fewer pods
// during a rollout, 10 minutes for progress, and whose status was up to date in generation 2.
func web(image string, replicas int32, changes ...change) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "web", Generation: 2},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template(image),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromString("25%")), MaxUnavailable: new(intstr.FromString("25%")),
			}},
			ProgressDeadlineSeconds: new(int32(600)), RevisionHistoryLimit: new(int32(10)),
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 2},
	}
	for _, c := range changes {
		c(d)
	}
	return d
}

func limits(surge, unavailable intstr.IntOrString) change {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
	}
}

func recreate(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

func paused(d *appsv1.Deployment) { d.Spec.Paused = true }

func dying(d *appsv1.Deployment) { d.DeletionTimestamp = new(ago(0)) }

func annotated(key, value string) change {
	return func(d *appsv1.Deployment) {
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		d.Annotations[key] = value
	}
}

func counts(total, updated, ready, available int32) change {
	return func(d *appsv1.Deployment) {
		d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas, d.Status.AvailableReplicas = total, updated, ready, available
	}
}

// progressing adds that condition, last updated so long ago.
func progressing(status v1.ConditionStatus, reason string, d time.Duration) change {
	return func(dep *appsv1.Deployment) {
		dep.Status.Conditions = append(dep.Status.Conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: status, Reason: reason, LastUpdateTime: ago(d), LastTransitionTime: ago(d),
		})
	}
}

// done is the status of three replicas whose rollout is over.
func done(d *appsv1.Deployment) {
	counts(3, 3, 3, 3)(d)
	progressing(v1.ConditionTrue, newReplicaSetAvailable, time.Hour)(d)
}

type setChange func(*appsv1.ReplicaSet)

// set is a ReplicaSet of a Deployment web with as many replicas as it wants, all of them available. Its
// image is its name; its number is that in the name, and the higher it is the younger the set.
func set(image string, replicas int32, changes ...setChange) *appsv1.ReplicaSet {
	var number int
	if _, err := fmt.Sscanf(image, "v%d", &number); err != nil {
		panic(err)
	}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: image, UID: types.UID(image), Generation: 1, CreationTimestamp: ago(time.Hour - time.Duration(number)*time.Minute),
			Annotations:     map[string]string{revisionKey: fmt.Sprint(number)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(web("", 0), kind)},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Template: template(image)},
		Status: appsv1.ReplicaSetStatus{
			Replicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas, ObservedGeneration: 1, TerminatingReplicas: new(int32(0)),
		},
	}
	rs.Spec.Template.Labels[hashLabel] = "hash" + image
	for _, c := range changes {
		c(rs)
	}
	return rs
}

// has is how many pods there are, and how many are available.
func has(replicas, available int32) setChange {
	return func(rs *appsv1.ReplicaSet) {
		rs.Status.Replicas, rs.Status.ReadyReplicas, rs.Status.AvailableReplicas = replicas, available, available
	}
}

// unseen is one whose controller has not seen its size yet.
func unseen(rs *appsv1.ReplicaSet) { rs.Generation = 2 }

// sized is what the annotations say about the Deployment when the set was scaled last.
func sized(desired, most int32) setChange {
	return func(rs *appsv1.ReplicaSet) {
		rs.Annotations[desiredKey], rs.Annotations[maxKey] = fmt.Sprint(desired), fmt.Sprint(most)
	}
}

func with(key, value string) setChange {
	return func(rs *appsv1.ReplicaSet) { rs.Annotations[key] = value }
}

// say tells a plan's steps in a line each.
func say(p plan) string {
	var out []string
	for _, s := range p.steps {
		text := ""
		switch {
		case s.create != nil:
			text = fmt.Sprintf("create %d", *s.create.Spec.Replicas)
		case s.update != nil:
			text = fmt.Sprintf("update %s %d", s.update.Name, *s.update.Spec.Replicas)
		case s.remove != nil:
			text = "remove " + s.remove.Name
		case s.spec != nil:
			text = "spec " + s.spec.Spec.Template.Spec.Containers[0].Image
		case s.event != nil:
			text = s.event.reason
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func plain(d *appsv1.Deployment, sets ...*appsv1.ReplicaSet) facts {
	return facts{deployment: d, sets: sets, now: now}
}

func TestSteps(t *testing.T) {
	abs, percent := intstr.FromInt32, intstr.FromString
	for name, tt := range map[string]struct {
		facts facts
		want  string
	}{
		// Rolling update.
		"the first":                           {plain(web("v1", 3)), "create 3"},
		"the first of none":                   {plain(web("v1", 0)), "create 0"},
		"nothing to do":                       {plain(web("v1", 3), set("v1", 3)), ""},
		"a new template":                      {plain(web("v2", 10), set("v1", 10)), "create 3, update v1 8"},
		"a new template, no surge":            {plain(web("v2", 3, limits(abs(0), abs(1))), set("v1", 3)), "create 0, update v1 2"},
		"a new template, none unavailable":    {plain(web("v2", 3, limits(abs(1), abs(0))), set("v1", 3)), "create 1"},
		"neither surge nor unavailable":       {plain(web("v2", 3, limits(percent("0%"), percent("1%"))), set("v1", 3)), "create 0, update v1 2"},
		"the new one grows":                   {plain(web("v2", 10), set("v1", 8), set("v2", 3, has(3, 0))), "update v2 5"},
		"then it waits":                       {plain(web("v2", 10), set("v1", 8), set("v2", 5, has(5, 0))), ""},
		"the old one shrinks as pods come up": {plain(web("v2", 10), set("v1", 8), set("v2", 5, has(5, 2))), "update v1 6"},
		"the end of it":                       {plain(web("v2", 10), set("v1", 1), set("v2", 10)), "update v1 0"},
		"several old ones, the oldest first":  {plain(web("v3", 10), set("v1", 3), set("v2", 5), set("v3", 5)), "update v1 0, update v2 3"},
		"the unhealthy ones first":            {plain(web("v3", 10), set("v1", 5), set("v2", 5, has(5, 1)), set("v3", 3, has(3, 2))), "update v2 1"},
		"only unhealthy ones":                 {plain(web("v2", 4, limits(abs(1), abs(1))), set("v1", 4, has(4, 1)), set("v2", 1, has(1, 0))), "update v1 3"},
		"a rollout that never becomes ready":  {plain(web("v2", 10, limits(abs(3), abs(2))), set("v1", 8, has(8, 7)), set("v2", 5, has(5, 0))), ""},
		"undone, the bad pods go at once":     {plain(web("v1", 10, limits(abs(3), abs(2))), set("v1", 8, has(8, 7)), set("v2", 5, has(5, 0))), "update v1 8, update v2 1"},
		"a third template":                    {plain(web("v3", 10, limits(abs(3), abs(2))), set("v1", 8), set("v2", 5, has(5, 0))), "create 0, update v2 0"},
		"the old one is just shrinking":       {plain(web("v2", 5, limits(abs(2), abs(0))), set("v1", 2, has(3, 3)), set("v2", 5, has(5, 4))), "update v1 1"},
		"one shrank, and is to grow again":    {plain(web("v1", 6, limits(abs(1), abs(0))), set("v1", 6, unseen), set("v2", 1)), "update v1 6"},
		"the new one is too large":            {plain(web("v2", 3), set("v2", 5)), "update v2 3"},
		"scaled by somebody else":             {plain(web("v1", 3), set("v1", 2, sized(3, 4))), "update v1 3"},
		"two of the same template, the older": {plain(web("v1", 3), set("v1", 3), set("v2", 3, func(rs *appsv1.ReplicaSet) { rs.Spec.Template = template("v1") })), "update v1 3, update v2 0"},

		// Recreate.
		"recreate, the first":       {plain(web("v1", 3, recreate)), "create 3"},
		"recreate, stop the old":    {plain(web("v3", 3, recreate), set("v1", 1), set("v2", 3)), "update v1 0, update v2 0"},
		"recreate, the old end":     {plain(web("v2", 3, recreate), set("v1", 0, has(1, 0))), ""},
		"recreate, a pod still is":  {facts{deployment: web("v2", 3, recreate), sets: []*appsv1.ReplicaSet{set("v1", 0)}, running: map[types.UID]bool{"v1": true}, now: now}, ""},
		"recreate, its own pod is":  {facts{deployment: web("v2", 3, recreate), sets: []*appsv1.ReplicaSet{set("v2", 1)}, running: map[types.UID]bool{"v2": true}, now: now}, "update v2 3"},
		"recreate, one may still":   {plain(web("v2", 3, recreate), set("v1", 0, has(0, 0), unseen)), ""},
		"recreate, the old are off": {plain(web("v2", 3, recreate), set("v1", 0)), "create 3"},

		// Scaling.
		"scaled up":                             {plain(web("v1", 5), set("v1", 3, sized(3, 4))), "update v1 5"},
		"scaled to nothing":                     {plain(web("v1", 0), set("v1", 3, sized(3, 4))), "update v1 0"},
		"scaled, but the set is right":          {plain(web("v1", 5), set("v1", 5, sized(3, 4))), "update v1 5"},
		"scaled in a rollout":                   {plain(web("v2", 20), set("v1", 8, sized(10, 13)), set("v2", 5, sized(10, 13))), "update v2 10, update v1 15"},
		"scaled down in a rollout":              {plain(web("v2", 5), set("v1", 8, sized(10, 13)), set("v2", 5, sized(10, 13))), "update v2 3, update v1 4"},
		"of the same size, up: the newer":       {plain(web("v2", 6, limits(abs(0), abs(1))), set("v1", 2, sized(5, 5)), set("v2", 2, sized(5, 5), has(2, 1))), "update v2 4, update v1 2"},
		"of the same size, down: the older":     {plain(web("v2", 3, limits(abs(0), abs(1))), set("v1", 2, sized(4, 4)), set("v2", 2, sized(4, 4))), "update v2 2, update v1 1"},
		"scaled to nothing in a rollout":        {plain(web("v2", 0), set("v1", 8, sized(10, 13)), set("v2", 5, sized(10, 13))), "update v2 0, update v1 0"},
		"without the annotation":                {plain(web("v2", 20, counts(13, 5, 13, 13)), set("v1", 8), set("v2", 5, sized(10, 13))), "update v2 10, update v1 15"},
		"saturated, others have replicas":       {plain(web("v2", 5), set("v1", 3, sized(3, 4)), set("v2", 5, sized(5, 7))), "update v1 0"},
		"recreate, scaled":                      {plain(web("v2", 5, recreate), set("v2", 3, sized(3, 3))), "update v2 5"},
		"recreate in a rollout, scaled":         {plain(web("v3", 0, recreate), set("v1", 2, sized(3, 4)), set("v2", 2, sized(3, 4)), set("v3", 0)), "update v1 0, update v2 0"},
		"a new template and another size":       {plain(web("v2", 20), set("v1", 10, sized(10, 13))), "update v1 20"},
		"a set without replicas tells no scale": {plain(web("v2", 5), set("v1", 0, sized(3, 4)), set("v2", 5, sized(5, 7))), ""},

		// Pause.
		"paused, the first":                            {plain(web("v1", 3, paused)), ""},
		"paused, a new template":                       {plain(web("v2", 3, paused), set("v1", 3, sized(3, 4))), ""},
		"paused, scaled":                               {plain(web("v2", 5, paused), set("v1", 3, sized(3, 4))), "update v1 5"},
		"paused in a rollout":                          {plain(web("v2", 10, paused), set("v1", 8, sized(10, 13)), set("v2", 5, sized(10, 13))), ""},
		"paused, none has any":                         {plain(web("v3", 4, paused), set("v1", 0), set("v2", 0)), "update v2 4"},
		"paused before there is a new one, others run": {plain(web("v3", 3, recreate, paused), set("v1", 0, has(1, 0)), set("v2", 0)), ""},
		"paused, the old run":                          {plain(web("v2", 3, recreate, paused), set("v1", 0, has(1, 0)), set("v2", 0)), ""},
		"being deleted":                                {plain(web("v2", 3, dying), set("v1", 3)), ""},
		"it would select all pods":                     {plain(web("v1", 3, func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} })), "SelectingAll"},

		// What the current one has from the Deployment.
		"an annotation is copied":      {plain(web("v1", 3, annotated("k", "v")), set("v1", 3)), "update v1 3"},
		"some are not":                 {plain(web("v1", 3, annotated(v1.LastAppliedConfigAnnotation, "v"), annotated(revisionKey, "9")), set("v1", 3)), ""},
		"minReadySeconds":              {plain(web("v1", 3, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 5 }), set("v1", 3)), "update v1 3"},
		"back to an old one":           {plain(web("v1", 3, done), set("v1", 3), set("v2", 0)), "update v1 3"},
		"a revision that is no number": {plain(web("v1", 3), set("v1", 3, with(revisionKey, "x"))), ""},

		// History.
		"within the limit": {plain(web("v3", 3, done, history(2)), set("v1", 0), set("v2", 0), set("v3", 3)), ""},
		"above the limit":  {plain(web("v4", 3, done, history(1)), set("v1", 0), set("v2", 0), set("v3", 0), set("v4", 3)), "remove v1, remove v2"},
		"by revision": {plain(web("v4", 3, done, history(2)),
			set("v1", 0, with(revisionKey, "5")), set("v2", 0), set("v3", 0, with(revisionKey, "3")), set("v4", 3, with(revisionKey, "6"))), "remove v2"},
		"no history":             {plain(web("v2", 3, done, history(0)), set("v1", 0), set("v2", 3)), "remove v1"},
		"one still has pods":     {plain(web("v3", 3, done, history(0)), set("v1", 0, has(1, 1)), set("v2", 0), set("v3", 3)), "remove v2"},
		"one is not observed":    {plain(web("v3", 3, done, history(0)), set("v1", 0, unseen), set("v2", 0), set("v3", 3)), "remove v2"},
		"one is being deleted":   {plain(web("v3", 3, done, history(1)), set("v1", 0, func(rs *appsv1.ReplicaSet) { rs.DeletionTimestamp = new(ago(0)) }), set("v2", 0), set("v3", 3)), ""},
		"unlimited":              {plain(web("v2", 3, done, history(math.MaxInt32)), set("v1", 0), set("v2", 3)), ""},
		"not before it is done":  {plain(web("v2", 3, history(0)), set("v1", 0), set("v2", 3, has(3, 2))), ""},
		"nor while it is paused": {plain(web("v2", 3, paused, history(0)), set("v1", 0), set("v2", 3, sized(3, 4))), "remove v1"},
		"recreate, its last pods end": {facts{
			deployment: web("v2", 3, recreate, paused, history(0)), sets: []*appsv1.ReplicaSet{set("v1", 0), set("v2", 3, sized(3, 3))},
			running: map[types.UID]bool{"v1": true}, now: now,
		}, ""},

		// Rollback.
		"to a revision":           {plain(web("v3", 3, rollback("1")), set("v1", 0), set("v2", 0), set("v3", 3)), "spec v1"},
		"to the last":             {plain(web("v3", 3, rollback("0")), set("v1", 0), set("v2", 0), set("v3", 3)), "spec v2"},
		"to one that is not":      {plain(web("v3", 3, rollback("7")), set("v3", 3)), "spec v3"},
		"there is no last":        {plain(web("v3", 3, rollback("0")), set("v3", 3, with(revisionKey, "1"))), "spec v3"},
		"to itself":               {plain(web("v3", 3, rollback("3")), set("v1", 0), set("v3", 3)), "spec v3"},
		"from a new template":     {plain(web("v3", 3, rollback("0")), set("v1", 0), set("v2", 3)), "create 1, spec v2"},
		"recreate, the old run":   {plain(web("v3", 3, recreate, rollback("0")), set("v1", 0), set("v2", 3)), "create 0, spec v2"},
		"to what is no number":    {plain(web("v3", 3, rollback("x")), set("v3", 3)), ""},
		"paused, no rolling back": {plain(web("v3", 3, rollback("1"), paused), set("v1", 0), set("v3", 3, sized(3, 4))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := tt.facts.deployment.DeepCopy()
			sets := slices.Clone(tt.facts.sets)
			for i, rs := range sets {
				sets[i] = rs.DeepCopy()
			}
			if got := say(planFor(tt.facts)); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if !reflect.DeepEqual(before, tt.facts.deployment) || !reflect.DeepEqual(sets, tt.facts.sets) {
				t.Error("the facts were changed")
			}
		})
	}
}

func history(n int32) change {
	return func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = &n }
}

func rollback(to string) change { return annotated(appsv1.DeprecatedRollbackTo, to) }

func TestEvents(t *testing.T) {
	for name, tt := range map[string]struct {
		facts facts
		want  []string
	}{
		"the first": {plain(web("v1", 3)), []string{"Normal ScalingReplicaSet Scaled up replica set web-NEW from 0 to 3"}},
		"none":      {plain(web("v1", 0)), nil},
		"rolling":   {plain(web("v2", 10), set("v1", 10)), []string{"Normal ScalingReplicaSet Scaled up replica set web-NEW from 0 to 3", "Normal ScalingReplicaSet Scaled down replica set v1 from 10 to 8"}},
		"annotated": {plain(web("v1", 3, annotated("k", "v")), set("v1", 3)), nil},
		"rolled back": {plain(web("v2", 3, rollback("1")), set("v1", 0), set("v2", 3)),
			[]string{`Normal DeploymentRollback Rolled back deployment "web" to revision 1`}},
		"no such revision": {plain(web("v2", 3, rollback("7")), set("v2", 3)),
			[]string{"Warning DeploymentRollbackRevisionNotFound Unable to find the revision to rollback to."}},
		"no last revision": {plain(web("v2", 3, rollback("0")), set("v2", 3, with(revisionKey, "1"))),
			[]string{"Warning DeploymentRollbackRevisionNotFound Unable to find last revision."}},
		"the same template": {plain(web("v2", 3, rollback("2")), set("v2", 3)),
			[]string{`Warning DeploymentRollbackTemplateUnchanged The rollback revision contains the same template as current deployment "web"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range planFor(tt.facts).steps {
				if s.event == nil {
					continue
				}
				text := fmt.Sprintf("%s %s %s", s.event.kind, s.event.reason, s.event.message)
				if s.create != nil {
					text = strings.ReplaceAll(text, s.create.Name, "web-NEW")
				}
				got = append(got, text)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestNewReplicaSet(t *testing.T) {
	d := web("v2", 4, annotated("k", "v"), annotated(v1.LastAppliedConfigAnnotation, "x"))
	p := planFor(plain(d, set("v1", 0, with(revisionKey, "7"))))
	rs := p.steps[0].create
	hash := rs.Labels[hashLabel]
	if rs.Name != "web-"+hash || hash != pods.TemplateHash(&d.Spec.Template, nil) || rs.Spec.Template.Labels[hashLabel] != hash || rs.Spec.Template.Labels["app"] != "web" ||
		rs.Spec.Selector.MatchLabels[hashLabel] != hash || rs.Spec.Selector.MatchLabels["app"] != "web" || !metav1.IsControlledBy(rs, d) {
		t.Errorf("%+v", rs)
	}
	want := map[string]string{"k": "v", revisionKey: "8", desiredKey: "4", maxKey: "5"}
	if fmt.Sprint(rs.Annotations) != fmt.Sprint(want) {
		t.Errorf("annotations: %v", rs.Annotations)
	}
	if p.status.Annotations[revisionKey] != "8" || len(d.Spec.Template.Labels) != 1 {
		t.Errorf("the Deployment: %v", p.status.Annotations)
	}
	if got := nameOf(strings.Repeat("a", 253), "hash"); len(got) != 253 || !strings.HasSuffix(got, "a-hash") {
		t.Errorf("long name: %s", got)
	}
}

func TestRollBackTakesAnnotations(t *testing.T) {
	d := web("v2", 3, rollback("1"), annotated("cause", "second"), annotated("mine", "x"), annotated(v1.LastAppliedConfigAnnotation, "applied"), annotated(revisionKey, "2"))
	p := planFor(plain(d, set("v1", 0, with("cause", "first"), sized(3, 4)), set("v2", 3, with("cause", "second"), with("mine", "x"))))
	got := p.steps[len(p.steps)-1].spec
	want := map[string]string{"cause": "first", v1.LastAppliedConfigAnnotation: "applied", revisionKey: "2"}
	if fmt.Sprint(got.Annotations) != fmt.Sprint(want) || got.Spec.Template.Labels[hashLabel] != "" || p.status != nil {
		t.Errorf("%v %v", got.Annotations, got.Spec.Template.Labels)
	}
}

func TestRevisionHistory(t *testing.T) {
	for name, tt := range map[string]struct {
		history string
		want    string
	}{
		"the first time":     {"", "1"},
		"the second time":    {"0", "0,1"},
		"the oldest go":      {strings.Repeat("9,", 998) + "1234", strings.Repeat("9,", 997) + "1234,1"},
		"one that is huge":   {strings.Repeat("9", 2000), "1"},
		"just within bounds": {strings.Repeat("9", 1998), strings.Repeat("9", 1998) + ",1"},
	} {
		t.Run(name, func(t *testing.T) {
			rs := set("v1", 3)
			if tt.history != "" {
				rs.Annotations[historyKey] = tt.history
			}
			p := planFor(plain(web("v1", 3), rs, set("v2", 0)))
			got := p.steps[0].update.Annotations
			if got[revisionKey] != "3" || got[historyKey] != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	for _, tt := range []struct {
		surge, unavailable string
		replicas           int32
		wantS, wantU       int32
	}{
		{"25%", "25%", 10, 3, 2}, {"25%", "25%", 1, 1, 0}, {"0", "1%", 2, 0, 1}, {"0", "1%", 1, 0, 1}, {"1%", "25%", 2, 1, 0},
		{"1%", "0", 2, 1, 0}, {"0", "0", 3, 0, 1}, {"0", "0", 0, 0, 0}, {"1", "5", 3, 1, 3}, {"100%", "0", 4, 4, 0}, {"3", "2", 10, 3, 2},
	} {
		s, u := resolve(&appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.Parse(tt.surge)), MaxUnavailable: new(intstr.Parse(tt.unavailable))}, tt.replicas)
		if s != tt.wantS || u != tt.wantU {
			t.Errorf("%+v: %d %d", tt, s, u)
		}
	}
	if s, u := resolve(nil, 3); s != 0 || u != 1 {
		t.Errorf("nothing said: %d %d", s, u)
	}
}

func TestSameTemplate(t *testing.T) {
	a, b := template("v1"), template("v1")
	b.Labels[hashLabel] = "x"
	if !sameTemplate(&a, &b) || b.Labels[hashLabel] == "" {
		t.Error("the hash counts")
	}
	a.Annotations = map[string]string{}
	if !sameTemplate(&a, &b) {
		t.Error("an empty map is not the same as none")
	}
	for name, c := range map[string]func(*v1.PodTemplateSpec){
		"label": func(t *v1.PodTemplateSpec) { t.Labels["k"] = "v" }, "annotation": func(t *v1.PodTemplateSpec) { t.Annotations["k"] = "v" },
		"spec": func(t *v1.PodTemplateSpec) { t.Spec.HostNetwork = true }, "image": func(t *v1.PodTemplateSpec) { t.Spec.Containers[0].Image = "v2" },
	} {
		if other := a.DeepCopy(); func() bool { c(other); return sameTemplate(other, &b) }() {
			t.Errorf("another %s is not noticed", name)
		}
	}
}

// The hash is part of names that upstream's controller would have given too.
func TestHash(t *testing.T) {
	a, b := template("v1"), template("v1")
	b.Spec.Containers = slices.Clone(b.Spec.Containers)
	if pods.TemplateHash(&a, nil) != pods.TemplateHash(&b, nil) {
		t.Error("equal templates, different hashes")
	}
	seen := map[string]bool{pods.TemplateHash(&a, nil): true}
	for n := range int32(3) {
		h := pods.TemplateHash(&a, &n)
		if seen[h] {
			t.Errorf("collision count %d: %s again", n, h)
		}
		seen[h] = true
	}
}

func TestNotCreatedStatus(t *testing.T) {
	rs, broken := set("v1", 1), errors.New("quota")
	next, told := notCreatedStatus(web("v1", 1), rs, broken, now)
	want := `Failed to create new replica set "v1": quota`
	if c := find(next.Status.Conditions, appsv1.DeploymentProgressing); told != want || c.Message != want || c.Reason != "ReplicaSetCreateError" || c.Status != v1.ConditionFalse {
		t.Errorf("%q %+v", told, c)
	}
	if again, told := notCreatedStatus(next, rs, broken, now); again != nil || told != want {
		t.Errorf("%v %q", again, told)
	}
	if none, _ := notCreatedStatus(web("v1", 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }), rs, broken, now); none != nil {
		t.Error("a condition without a deadline")
	}
}
