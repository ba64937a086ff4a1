package framework

import (
	"errors"
	"fmt"
	"slices"

	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Shape is a function of the utilization in per cent, linear between its points.
type Shape []configv1.UtilizationShapePoint

// NewShape checks a configured shape. Scores in a configuration go up to ten; those of plugins up to a hundred.
func NewShape(points []configv1.UtilizationShapePoint) (Shape, error) {
	if len(points) == 0 {
		return nil, errors.New("shape: Required value: at least one point must be specified")
	}
	out := slices.Clone(points)
	for i := range out {
		switch {
		case out[i].Utilization < 0 || out[i].Utilization > 100:
			return nil, fmt.Errorf("shape[%d].utilization: Invalid value: %d: not in valid range [0-100]", i, out[i].Utilization)
		case out[i].Score < 0 || out[i].Score > 10:
			return nil, fmt.Errorf("shape[%d].score: Invalid value: %d: not in valid range [0-10]", i, out[i].Score)
		case i > 0 && out[i].Utilization <= out[i-1].Utilization:
			return nil, fmt.Errorf("shape[%d].utilization: Invalid value: %d: utilization values must be sorted in increasing order", i, out[i].Utilization)
		}
		out[i].Score *= int32(fwk.MaxScore / 10)
	}
	return out, nil
}

// Score returns the score of what is requested of what there is. Too much of it counts as all of it.
func (s Shape) Score(requested, has int64) int64 {
	percent := int64(100)
	if has > 0 && requested <= has {
		percent = requested * 100 / has
	}
	for i, p := range s {
		if percent > int64(p.Utilization) {
			continue
		}
		if i == 0 {
			return int64(p.Score)
		}
		before := s[i-1]
		return int64(before.Score) + int64(p.Score-before.Score)*(percent-int64(before.Utilization))/int64(p.Utilization-before.Utilization)
	}
	return int64(s[len(s)-1].Score)
}
