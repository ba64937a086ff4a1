package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// lateAfter is how long a change may wait for the kernel before the proxy counts as ill: upstream's two
// periods of nftables mode.
const lateAfter = time.Minute

// toBeDeleted is the taint that the cluster autoscaler puts on a node that it is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Condition is how the proxy and its node are, with upstream's names.
type Condition struct {
	// LastUpdated is when the kernel last had everything: now, as long as the proxy is healthy.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible says whether load balancers may send connections to the node.
	NodeEligible *bool `json:"nodeEligible,omitempty"`
	Healthy      bool  `json:"healthy"`
}

// Condition tells how the proxy is. Any goroutine may ask.
func (p *Proxy) Condition(now time.Time) Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Condition{LastUpdated: p.updated, CurrentTime: now, Healthy: true}
	for _, waiting := range []time.Time{p.since, p.writing} {
		if !waiting.IsZero() && now.Sub(waiting) >= lateAfter {
			c.Healthy = false
		}
	}
	return c
}

// nodeEligible reports whether the node is there, and stays.
func (p *Proxy) nodeEligible() bool {
	item, exists, err := p.nodes.GetByKey(p.cfg.Node)
	if err != nil || !exists {
		return false
	}
	n := item.(*v1.Node)
	return n.DeletionTimestamp.IsZero() && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == toBeDeleted })
}

// ServeHealthz answers whether load balancers should use the node.
func (p *Proxy) ServeHealthz(w http.ResponseWriter, _ *http.Request) {
	c, eligible := p.Condition(time.Now()), p.nodeEligible()
	c.NodeEligible = &eligible
	c.answer(w, c.Healthy && eligible)
}

// ServeLivez answers whether the proxy works.
func (p *Proxy) ServeLivez(w http.ResponseWriter, _ *http.Request) {
	c := p.Condition(time.Now())
	c.answer(w, c.Healthy)
}

func (c Condition) answer(w http.ResponseWriter, ok bool) {
	code := http.StatusOK
	if ok {
		c.LastUpdated = c.CurrentTime
	} else {
		code = http.StatusServiceUnavailable
	}
	if c.NodeEligible != nil {
		healthzAnswers.WithLabelValues(strconv.Itoa(code)).Inc()
	} else {
		livezAnswers.WithLabelValues(strconv.Itoa(code)).Inc()
	}
	answerJSON(w, code, c, "")
}
