package defaults

import flowcontrolv1 "k8s.io/api/flowcontrol/v1"

// FlowSchema gives a schema a precedence in the middle.
func FlowSchema(s *flowcontrolv1.FlowSchema) {
	set(&s.Spec.MatchingPrecedence, 1000)
}

// PriorityLevelConfiguration gives a limited level 30 shares, of which it lends none, and its queues
// a size; an exempt one has no shares of its own.
func PriorityLevelConfiguration(c *flowcontrolv1.PriorityLevelConfiguration) {
	if e := c.Spec.Exempt; e != nil {
		setPtr(&e.NominalConcurrencyShares, 0)
		setPtr(&e.LendablePercent, 0)
	}
	l := c.Spec.Limited
	if l == nil {
		return
	}
	setPtr(&l.NominalConcurrencyShares, 30)
	setPtr(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		set(&q.Queues, 64)
		set(&q.HandSize, 8)
		set(&q.QueueLengthLimit, 50)
	}
}
