package nodelifecycle

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-helpers/node/topology"
)

// zoneState says how many of a zone's nodes are not ready.
type zoneState int

const (
	normal  zoneState = iota
	partial           // more than the threshold, and more than two
	full              // all
)

// stateOf returns the state of a zone with so many nodes, bad of which are not ready.
func stateOf(nodes, bad int, threshold float64) zoneState {
	switch {
	case nodes > 0 && bad == nodes:
		return full
	case bad > 2 && float64(bad)/float64(nodes) >= threshold:
		return partial
	}
	return normal
}

// rate returns how many nodes of a zone lose their pods in a second: the usual number, fewer when much of the zone is not
// ready, which may be a failure of its network and not of its nodes, and then none in a small zone. A zone that is lost as a
// whole loses its pods as usual, if there is another one for them.
func (o *Options) rate(s zoneState, nodes int) float64 {
	switch {
	case s != partial:
		return o.EvictionRate
	case nodes > o.LargeZone:
		return o.SecondaryEvictionRate
	}
	return 0
}

// zoneNodes is what is known of the nodes of a zone.
type zoneNodes struct {
	nodes, bad int
	rate       float64
	tokens     flowcontrol.RateLimiter // one for each node that loses its pods; nil if none may
}

// disruption decides of which nodes that are not ready the pods are evicted, and when. As long as no node is ready, of none: it
// is this control plane that is cut off then.
//
// It does what upstream's controller calls zone states and master disruption mode.
type disruption struct {
	o Options

	mu      sync.Mutex
	zones   map[string]*zoneNodes
	nodes   map[string]nodeInZone
	granted map[string]bool // nodes whose turn has come, and that may not have the taint yet
	cutOff  bool            // no node is ready
}

type nodeInZone struct {
	zone string
	bad  bool
}

// change is what has become of the cluster as a whole.
type change int

const (
	noChange change = iota
	cutOff          // the last node that was ready is not any more
	back            // a node is ready again
)

func newDisruption(o Options) *disruption {
	return &disruption{o: o, zones: map[string]*zoneNodes{}, nodes: map[string]nodeInZone{}, granted: map[string]bool{}}
}

// see notes what a node is now.
func (d *disruption) see(n *v1.Node) change {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := nodeInZone{topology.GetZoneKey(n), ready(n).Status != v1.ConditionTrue}
	was, known := d.nodes[n.Name]
	if known && was == now {
		return noChange
	}
	if known {
		d.count(was, -1)
	}
	d.nodes[n.Name] = now
	d.count(now, 1)
	if !now.bad {
		delete(d.granted, n.Name)
	}
	return d.look()
}

// forget notes that a node is gone.
func (d *disruption) forget(name string) change {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.nodes[name]
	if !known {
		return noChange
	}
	d.count(was, -1)
	delete(d.nodes, name)
	delete(d.granted, name)
	return d.look()
}

func (d *disruption) count(n nodeInZone, by int) {
	z := d.zones[n.zone]
	if z == nil {
		z = &zoneNodes{rate: -1}
		d.zones[n.zone] = z
	}
	z.nodes += by
	if n.bad {
		z.bad += by
	}
	if z.nodes == 0 {
		delete(d.zones, n.zone)
		return
	}
	if rate := d.o.rate(stateOf(z.nodes, z.bad, d.o.UnhealthyZone), z.nodes); rate != z.rate {
		z.rate, z.tokens = rate, nil
		if rate > 0 {
			z.tokens = flowcontrol.NewTokenBucketRateLimiter(float32(rate), 1)
		}
	}
}

// look returns what has changed for the cluster as a whole.
func (d *disruption) look() change {
	now := len(d.nodes) > 0
	for _, z := range d.zones {
		now = now && z.bad == z.nodes
	}
	was := d.cutOff
	d.cutOff = now
	switch {
	case now && !was:
		return cutOff
	case was && !now:
		return back
	}
	return noChange
}

// may reports whether a node that is not ready may lose its pods, or keep the taint by which it does. If not, it is worth
// asking again after a while.
func (d *disruption) may(n *v1.Node) (ok bool, again time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const most = 10 * time.Second
	z := d.zones[topology.GetZoneKey(n)]
	switch {
	case d.cutOff || z == nil:
		return false, 0 // a change is told
	case evicts(n):
		delete(d.granted, n.Name)
		return true, 0
	case d.granted[n.Name]:
		return true, 0
	case z.tokens == nil:
		return false, most
	case z.tokens.TryAccept():
		d.granted[n.Name] = true // the write may have to be repeated
		return true, 0
	}
	return false, min(max(time.Duration(float64(time.Second)/z.rate), 50*time.Millisecond), most)
}
