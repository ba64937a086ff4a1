package volumes

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// PreScore skips pods whose claims all have their volumes.
func (b *Binding) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if s := stateOf(state); s == nil || len(s.needs.open) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score says how much of the storage on a node the pod's claims would take.
func (b *Binding) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s := stateOf(state)
	if s == nil {
		return 0, nil
	}
	p := s.plan(n.Node().Name)
	if p == nil {
		return 0, nil
	}
	return p.score(b.shape), nil
}

// ScoreExtensions returns nil: the score is on the right scale already.
func (*Binding) ScoreExtensions() fwk.ScoreExtensions { return nil }

// score returns the mean of the classes' scores. Volumes that exist decide; where there are none, it is the room from
// which volumes are made, as far as it is known (KEP-4049).
func (p *plan) score(shape framework.Shape) int64 {
	type share struct{ requested, has int64 }
	classes := map[string]share{}
	for _, b := range p.bind {
		c := classes[b.pv.Spec.StorageClassName]
		c.requested += request(b.claim)
		c.has += b.pv.Spec.Capacity.Storage().Value()
		classes[b.pv.Spec.StorageClassName] = c
	}
	if len(p.bind) == 0 {
		for _, m := range p.provision {
			if m.capacity == 0 {
				continue
			}
			class := volume.GetPersistentVolumeClaimClass(m.claim)
			classes[class] = share{classes[class].requested + request(m.claim), m.capacity}
		}
	}
	if len(classes) == 0 {
		return 0
	}
	var sum int64
	for _, c := range classes {
		sum += shape.Score(c.requested, c.has)
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}
