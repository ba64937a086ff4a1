package deployment

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// Annotations of ReplicaSets, and the first one of the Deployment as well.
const (
	// revisionKey is the number of the rollout.
	revisionKey = "deployment.kubernetes.io/revision"
	// historyKey has the numbers that the ReplicaSet had before, each time it was rolled back to.
	historyKey = "deployment.kubernetes.io/revision-history"
	// desiredKey has the Deployment's replicas, and maxKey those plus maxSurge, when the ReplicaSet was
	// last scaled. A Deployment that was scaled since then is known by them.
	desiredKey = "deployment.kubernetes.io/desired-replicas"
	maxKey     = "deployment.kubernetes.io/max-replicas"

	// maxHistory is how many characters the history may have (upstream's value).
	maxHistory = 2000
)

// own reports whether an annotation is not copied between a Deployment and its ReplicaSets.
func own(key string) bool {
	switch key {
	case v1.LastAppliedConfigAnnotation, revisionKey, historyKey, desiredKey, maxKey, appsv1.DeprecatedRollbackTo:
		return true
	}
	return false
}

// member is one of the Deployment's ReplicaSets: as it is, and as it should be.
type member struct {
	*appsv1.ReplicaSet
	created     bool // it has yet to be created
	replicas    int32
	minReady    int32
	annotations map[string]string
}

func memberOf(rs *appsv1.ReplicaSet) *member {
	return &member{ReplicaSet: rs, replicas: orOne(rs.Spec.Replicas), minReady: rs.Spec.MinReadySeconds, annotations: rs.Annotations}
}

// orOne is the API's default number of replicas.
func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// annotate sets an annotation, without touching the ReplicaSet as it is.
func (m *member) annotate(key, value string) {
	if have, ok := m.annotations[key]; ok && have == value {
		return
	}
	m.annotations = maps.Clone(m.annotations)
	if m.annotations == nil {
		m.annotations = map[string]string{}
	}
	m.annotations[key] = value
}

// changed reports whether the ReplicaSet is not as it should be.
func (m *member) changed() bool {
	return m.replicas != orOne(m.Spec.Replicas) || m.minReady != m.Spec.MinReadySeconds || !maps.Equal(m.annotations, m.Annotations)
}

// observed reports whether the ReplicaSet's controller has seen its size.
func (m *member) observed() bool { return m.Generation <= m.Status.ObservedGeneration }

// wanted returns the ReplicaSet as it should be.
func (m *member) wanted() *appsv1.ReplicaSet {
	rs := m.DeepCopy()
	rs.Spec.Replicas, rs.Spec.MinReadySeconds, rs.Annotations = new(m.replicas), m.minReady, m.annotations
	return rs
}

// revision returns the ReplicaSet's number: 0 if it has none yet. It has none at all if somebody made
// the annotation something else.
func (m *member) revision() (n int64, ok bool) {
	text, ok := m.annotations[revisionKey]
	if !ok {
		return 0, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// number returns the value of an annotation that has a number of replicas.
func (m *member) number(key string) (int32, bool) {
	n, err := strconv.ParseUint(m.annotations[key], 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, false
	}
	return int32(n), true
}

// setRevision gives the ReplicaSet a higher number, and keeps the one that it had in its history, of
// which the oldest part goes when it becomes too long.
func (m *member) setRevision(n int64) {
	before, had := m.annotations[revisionKey]
	if old, ok := m.revision(); !ok && before != "" || old >= n {
		return
	}
	m.annotate(revisionKey, strconv.FormatInt(n, 10))
	if !had {
		return
	}
	history := []string{before}
	if known := m.annotations[historyKey]; known != "" {
		history = append(strings.Split(known, ","), before)
	}
	for len(history) > 1 && len(strings.Join(history, ",")) > maxHistory {
		history = history[1:]
	}
	m.annotate(historyKey, strings.Join(history, ","))
}

// byAge orders from old to new.
func byAge(a, b *member) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func bySizeThenOlder(a, b *member) int {
	return cmp.Or(cmp.Compare(b.replicas, a.replicas), byAge(a, b))
}

func bySizeThenNewer(a, b *member) int {
	return cmp.Or(cmp.Compare(b.replicas, a.replicas), byAge(b, a))
}

func byRevision(a, b *member) int {
	ra, oka := a.revision()
	rb, okb := b.revision()
	if !oka || !okb {
		return byAge(a, b)
	}
	return cmp.Or(cmp.Compare(ra, rb), byAge(a, b))
}

// sum adds up a number of each ReplicaSet.
func sum(all []*member, of func(*member) int32) (n int32) {
	for _, m := range all {
		n += of(m)
	}
	return n
}

func replicas(m *member) int32  { return m.replicas }
func available(m *member) int32 { return m.Status.AvailableReplicas }

// withReplicas returns those that should have pods.
func withReplicas(all []*member) []*member {
	return slices.DeleteFunc(slices.Clone(all), func(m *member) bool { return m.replicas == 0 })
}
