package proxy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	nft "wherry.dev/internal/proxy/nftables"
)

// state is what the kernel has been told, by service. It is not safe for concurrent use.
type state struct {
	services map[string]told
	claims   map[place][]claim
}

// told is what the kernel was told for one service.
type told struct {
	rules   Rules
	entries []entry
}

// claim is a service's wish for an element that others may want, too: two services can have the same
// external IP, and a pod can be behind both. The first one's value counts.
type claim struct {
	service string
	entry   entry
}

// valid reports whether a client's endpoint, as the map with the name has it, is still one of the
// frontend's, and the frontend still has affinity.
func (s *state) valid(name string, e nft.Element) bool {
	frontend := e.Key[:len(e.Key)-len(e.Value)+4] // without the client's address
	_, ok := s.first(place{strings.Replace(name, affinities, learners, 1), frontend + e.Value})
	return ok
}

// change is what has to be written: first the deletions, then the rest.
type change struct {
	remove, add []entry
	pickers     []picker
	sticky      bool // a service with affinity is among those that changed
}

func newState() *state {
	return &state{services: map[string]told{}, claims: map[place][]claim{}}
}

// set replaces a service's rules, and adds to the change what that means for the kernel.
func (s *state) set(service string, r Rules, c *change) {
	old := s.services[service]
	entries := r.entries()
	if len(entries) == 0 {
		delete(s.services, service)
	} else {
		s.services[service] = told{r, entries}
	}
	before := map[place]entry{}
	wanted := map[place]bool{}
	for _, e := range entries {
		wanted[e.place] = true
	}
	for _, e := range old.entries {
		if !wanted[e.place] {
			s.withdraw(service, e.place, before)
		}
	}
	for _, e := range entries {
		s.claim(service, e, before)
	}
	for p, was := range before {
		s.compare(p, was, c)
	}
	c.pickers = append(c.pickers, r.pickers()...)
	c.sticky = c.sticky || slices.ContainsFunc(old.rules.Balancers, func(b Balancer) bool { return b.Affinity > 0 })
}

// first returns the entry that the kernel should have at a place.
func (s *state) first(p place) (entry, bool) {
	if all := s.claims[p]; len(all) > 0 {
		return all[0].entry, true
	}
	return entry{}, false
}

// touch notes what the kernel has at a place, before anything of it is changed. A place that it does
// not have is noted as an entry without one.
func (s *state) touch(p place, before map[place]entry) {
	if _, ok := before[p]; !ok {
		before[p], _ = s.first(p)
	}
}

func (s *state) withdraw(service string, p place, before map[place]entry) {
	s.touch(p, before)
	s.claims[p] = slices.DeleteFunc(s.claims[p], func(c claim) bool { return c.service == service })
	if len(s.claims[p]) == 0 {
		delete(s.claims, p)
	}
}

func (s *state) claim(service string, e entry, before map[place]entry) {
	all := s.claims[e.place]
	i := slices.IndexFunc(all, func(c claim) bool { return c.service == service })
	switch {
	case i < 0:
		s.touch(e.place, before)
		s.claims[e.place] = append(all, claim{service, e})
	case all[i].entry != e:
		s.touch(e.place, before)
		all[i].entry = e
	}
}

func (s *state) compare(p place, was entry, c *change) {
	now, exists := s.first(p)
	had := was.place != place{}
	if had && (!exists || now != was) {
		c.remove = append(c.remove, was)
	}
	if exists && (!had || now != was) {
		c.add = append(c.add, now)
	}
}

// all returns everything that the kernel should have.
func (s *state) all() change {
	var c change
	for p := range s.claims {
		e, _ := s.first(p)
		c.add = append(c.add, e)
	}
	for _, t := range s.services {
		c.pickers = append(c.pickers, t.rules.pickers()...)
	}
	return c
}

// write writes a change; made are the chains for pickers that the table has, to which it adds.
func (c *change) write(b *nft.Batch, made map[string]bool) {
	for _, p := range c.pickers {
		p.writeOnce(b, made)
	}
	bySet(c.remove, b.DeleteElements)
	bySet(c.add, b.AddElements)
}

func bySet(entries []entry, write func(string, []nft.Element)) {
	sets := map[string][]nft.Element{}
	for _, e := range entries {
		sets[e.set] = append(sets[e.set], e.element())
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		slices.SortFunc(sets[name], func(a, b nft.Element) int { return cmp.Compare(a.Key, b.Key) })
		write(name, sets[name])
	}
}
