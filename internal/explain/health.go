package explain

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/report"
)

// volumesHealth tells what drivers say is wrong with a pod's volumes.
func (e *explainer) volumesHealth() {
	for _, h := range e.status.VolumeHealth {
		if len(h.HealthConditions) > 0 {
			e.note("volume %s: its driver says that on this node it is %s", h.Name, problems(h.HealthConditions))
		}
	}
}

// health tells what the driver says is wrong with a claim's volume.
func (e *binding) health() {
	if h := e.Claim.Status.HealthStatus; h != nil && len(h.HealthConditions) > 0 {
		e.note("its driver says that the volume is %s", problems(h.HealthConditions))
	}
}

func problems(list []v1.VolumeHealthCondition) string {
	var out []string
	for _, c := range list {
		out = append(out, string(c.Status)+report.Details(c.Reason, c.Message))
	}
	return strings.Join(out, ", ")
}
