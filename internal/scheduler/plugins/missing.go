package plugins

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// NotSupported is in the message of every pod that asks for what this scheduler cannot do.
const NotSupported = "not supported by this scheduler"

// missing stands in for a plugin of upstream's that does not exist here yet, under its name. It
// rejects pods that need that plugin, because they must not be bound as if they had not asked for
// anything. Users who disable it in a profile want such pods bound all the same.
type missing struct {
	name string
	// asks returns what a pod asks for.
	asks func(*v1.Pod) []string
}

// standIns returns stand-ins for the missing plugins, in upstream's order.
func standIns() []missing {
	return []missing{
		{"DynamicResources", devices},
	}
}

// Name returns upstream's name.
func (m missing) Name() string { return m.name }

// PreFilter rejects the pod, for all nodes alike.
func (m missing) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	what := m.asks(pod)
	if len(what) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, strings.Join(what, ", ")+": "+NotSupported)
}

// PreFilterExtensions returns nil: there is no state.
func (missing) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// EventsToRegister returns none: no event in the cluster can help.
func (missing) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

func devices(pod *v1.Pod) (out []string) {
	for _, c := range pod.Spec.ResourceClaims {
		out = append(out, fmt.Sprintf("resource claim %q", c.Name))
	}
	return out
}
