package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// outcome is what a client knows of its write.
type outcome int

const (
	unknown outcome = iota // no answer, or one that leaves it open: it took effect once, or not at all
	acknowledged
	refused // by a conflict, for example: it had no effect
)

// write is a request that changes one key.
type write struct {
	client            int
	key, value        string // values are unique; "" is a deletion
	before            int64  // the version that must be there; 0 is none
	invoked, returned time.Duration
	outcome           outcome
	version           int64 // of the answer; 0 for a deletion
}

// read is a consistent read of one key, or of all of them.
type read struct {
	invoked, returned time.Duration
	key               string            // "" is a list
	version           int64             // of the object, or of the list; 0 if there is no such object
	state             map[string]string // of a list: values by key
	any               bool              // of a list: it may be of any age
}

// event is a change. In the record of etcd that is all; in a watch a bookmark has no key.
type event struct {
	version    int64
	key, value string // value "" is a deletion
}

// stream is what one watch saw: it began after a version, where nothing was missing.
type stream struct {
	watcher int
	after   int64
	events  []event
}

// reign is a time in which a candidate took itself for the leader.
type reign struct {
	who      string
	from, to time.Duration
}

// history is all that was recorded, with etcd's own order of events as the truth.
type history struct {
	truth   []event
	writes  []write
	reads   []read
	streams []stream
	reigns  []reign
}

// check returns what is wrong with a history.
func (h *history) check() []error {
	slices.SortFunc(h.truth, func(a, b event) int { return cmp.Compare(a.version, b.version) })
	m := &model{history: h, at: map[int64]int{}, byValue: map[string]int{}}
	for i, e := range h.truth {
		if _, twice := m.at[e.version]; twice {
			m.wrong("etcd has revision %d twice", e.version)
		}
		m.at[e.version] = i
		if _, twice := m.byValue[e.value]; twice && e.value != "" {
			m.wrong("%s was written twice", e.value)
		}
		m.byValue[e.value] = i
	}
	m.checkWrites()
	m.checkOrder()
	m.checkReads()
	for _, s := range h.streams {
		m.checkStream(s)
	}
	m.checkReigns()
	return m.errs
}

type model struct {
	*history
	at      map[int64]int // revision → index in truth
	byValue map[string]int
	errs    []error
}

func (m *model) wrong(format string, args ...any) {
	if len(m.errs) < 20 {
		m.errs = append(m.errs, fmt.Errorf(format, args...))
	}
}

// previous returns the version of the key before an event: 0 if there was no such object.
func (m *model) previous(i int) int64 {
	for j := i - 1; j >= 0; j-- {
		if e := m.truth[j]; e.key == m.truth[i].key {
			if e.value == "" {
				return 0
			}
			return e.version
		}
	}
	return 0
}

// deletion returns the index of the event that deletes a version of a key; -1 if it was not deleted.
func (m *model) deletion(w write) int {
	i, ok := m.at[w.before]
	if !ok {
		return -1
	}
	for j := i + 1; j < len(m.truth); j++ {
		if e := m.truth[j]; e.key == w.key {
			if e.value == "" {
				return j
			}
			return -1
		}
	}
	return -1
}

// effect returns the index of a write's event; -1 if it had none.
func (m *model) effect(w write) int {
	if w.value == "" {
		return m.deletion(w)
	}
	if i, ok := m.byValue[w.value]; ok {
		return i
	}
	return -1
}

func (m *model) checkWrites() {
	written, deletions := map[string]bool{}, map[int]int{}
	for _, w := range m.writes {
		i := m.effect(w)
		switch {
		case w.outcome == acknowledged && i < 0:
			m.wrong("lost: %+v", w)
			continue
		case w.outcome == refused && i >= 0 && w.value != "":
			m.wrong("refused, but done: %+v", w)
		case w.outcome == acknowledged && w.value != "" && m.truth[i].version != w.version:
			m.wrong("answered with version %d, done in %d: %+v", w.version, m.truth[i].version, w)
		case w.outcome == acknowledged && m.previous(i) != w.before:
			m.wrong("written over version %d, not %d: %+v", m.previous(i), w.before, w)
		}
		written[w.value] = true
		if w.value == "" && w.outcome == acknowledged {
			if deletions[i]++; deletions[i] > 1 {
				m.wrong("two clients deleted one object: %+v", w)
			}
		}
	}
	for _, e := range m.truth {
		if e.value != "" && !written[e.value] {
			m.wrong("nobody wrote %+v", e)
		}
	}
}

// checkOrder holds that what was acknowledged before another request began has the lower version.
func (m *model) checkOrder() {
	type point struct {
		at      time.Duration
		version int64
		begins  bool
	}
	var points []point
	for _, w := range m.writes {
		if i := m.effect(w); w.outcome == acknowledged && i >= 0 {
			v := m.truth[i].version
			points = append(points, point{w.invoked, v, true}, point{w.returned, v, false})
		}
	}
	slices.SortStableFunc(points, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	newest := int64(0)
	for _, p := range points {
		if p.begins && p.version <= newest {
			m.wrong("version %d was written by a request that began after %d was acknowledged", p.version, newest)
		}
		if !p.begins {
			newest = max(newest, p.version)
		}
	}
}

// newest returns the highest version that was acknowledged before each read began, by the read's index.
func (m *model) newest() []int64 {
	type ack struct {
		at      time.Duration
		version int64
	}
	var acks []ack
	for _, w := range m.writes {
		if i := m.effect(w); w.outcome == acknowledged && i >= 0 {
			acks = append(acks, ack{w.returned, m.truth[i].version})
		}
	}
	for _, r := range m.reads {
		if !r.any {
			acks = append(acks, ack{r.returned, r.version})
		}
	}
	slices.SortFunc(acks, func(a, b ack) int { return cmp.Compare(a.at, b.at) })
	order := make([]int, len(m.reads))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(m.reads[a].invoked, m.reads[b].invoked) })
	out, next, newest := make([]int64, len(m.reads)), 0, int64(0)
	for _, i := range order {
		for ; next < len(acks) && acks[next].at < m.reads[i].invoked; next++ {
			newest = max(newest, acks[next].version)
		}
		out[i] = newest
	}
	return out
}

func (m *model) checkReads() {
	newest := m.newest()
	for i, r := range m.reads {
		switch {
		case r.key == "":
			if !r.any && r.version < newest[i] {
				m.wrong("a list of version %d began after %d was acknowledged", r.version, newest[i])
			}
			if is := m.stateAt(r.version); !maps.Equal(is, r.state) {
				m.wrong("a list of version %d has %v, there was %v", r.version, r.state, is)
			}
		case r.version > 0:
			j, ok := m.at[r.version]
			if !ok || m.truth[j].key != r.key || m.truth[j].value == "" {
				m.wrong("%s was never in version %d", r.key, r.version)
			} else if until := m.until(j); until <= newest[i] {
				m.wrong("a read of %s got version %d, which ended with %d; %d was acknowledged before", r.key, r.version, until, newest[i])
			}
		case !m.absentAfter(r.key, newest[i]):
			m.wrong("a read of %s found nothing; it was there at %d, which was acknowledged before, and ever since", r.key, newest[i])
		}
	}
}

// until returns the version in which an event's object was changed or deleted.
func (m *model) until(i int) int64 {
	for j := i + 1; j < len(m.truth); j++ {
		if m.truth[j].key == m.truth[i].key {
			return m.truth[j].version
		}
	}
	return 1 << 62
}

// absentAfter reports whether the key was absent at that version, or later.
func (m *model) absentAfter(key string, version int64) bool {
	absent := true
	for _, e := range m.truth {
		if e.key != key {
			continue
		}
		if absent && e.version > version {
			return true
		}
		absent = e.value == ""
	}
	return absent
}

func (m *model) stateAt(version int64) map[string]string {
	state := map[string]string{}
	for _, e := range m.truth {
		if e.version > version {
			break
		}
		if state[e.key] = e.value; e.value == "" {
			delete(state, e.key)
		}
	}
	return state
}

// checkStream holds that a watch saw every event since it began, once and in order, and no bookmark too early.
func (m *model) checkStream(s stream) {
	next, _ := slices.BinarySearchFunc(m.truth, s.after+1, func(e event, v int64) int { return cmp.Compare(e.version, v) })
	for _, e := range s.events {
		if e.key == "" {
			if next < len(m.truth) && m.truth[next].version <= e.version {
				m.wrong("watcher %d was told that it has all until %d, but lacks %+v", s.watcher, e.version, m.truth[next])
				return
			}
			continue
		}
		if next >= len(m.truth) || m.truth[next] != e {
			var want any = "nothing"
			if next < len(m.truth) {
				want = m.truth[next]
			}
			m.wrong("watcher %d saw %+v, the next event was %+v", s.watcher, e, want)
			return
		}
		next++
	}
}

func (m *model) checkReigns() {
	slices.SortFunc(m.reigns, func(a, b reign) int { return cmp.Compare(a.from, b.from) })
	var last reign
	for _, r := range m.reigns {
		if r.from < last.to && r.who != last.who {
			m.wrong("two leaders: %+v and %+v", last, r)
		}
		if r.to > last.to {
			last = r
		}
	}
}
