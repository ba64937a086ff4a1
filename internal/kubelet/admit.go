package kubelet

import (
	"context"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/host"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/shutdown"
	"wherry.dev/internal/kubelet/volume"
)

func (k *Kubelet) admissionConfig() admission.Config {
	return admission.Config{
		Conditions: &k.conditions, Node: k.nodeWithDevices, Look: k.lookAtNode, AllowedSysctls: k.cfg.AllowedUnsafeSysctls,
		Devices: admission.PluginDevices{Manager: k.devices}, CPUs: k.cpus, Memory: k.memory, NUMA: k.numa,
		AppArmor: host.AppArmor(), Refused: k.refused, Changed: k.podsChanged,
		Preempted: func(resource string) { metrics.Preemptions.WithLabelValues(resource).Inc() },
	}
}

// lookAtNode takes over the node's labels as the API server has them now.
func (k *Kubelet) lookAtNode(ctx context.Context) {
	if k.deps.Client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n, err := k.deps.Client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the node's labels, using those last seen", "err", err)
		return
	}
	k.node.Observe(n)
}

// rejections are the reasons that the metric distinguishes, as upstream does.
var rejections = []string{
	"AppArmor", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "SupplementalGroupsPolicyNotSupported", "UnexpectedAdmissionError",
	"OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods", "PodFeatureUnsupported", "SysctlForbidden", "TopologyAffinityError",
	shutdown.ReasonNotAdmitted, volume.ReasonNoRoom,
}

// rejection returns the metric's label for a reason: there may be any number of resources that
// clusters define themselves.
func rejection(reason string) string {
	switch {
	case slices.Contains(rejections, reason):
		return reason
	case strings.HasPrefix(reason, podplan.ReasonOutOf):
		return "OutOfExtendedResources"
	default:
		return "Other"
	}
}

// refused reports a pod that is not admitted.
func (k *Kubelet) refused(pod *v1.Pod, v podplan.Verdict) {
	metrics.Rejections.WithLabelValues(rejection(v.Reason)).Inc()
	k.events.Eventf(pod, v1.EventTypeWarning, v.Reason, "%s", v.Message)
}

// trouble returns what besides the runtime keeps the node from being ready.
func (k *Kubelet) trouble() string {
	if k.conditions.GoingDown.Load() {
		return shutdown.MessageShuttingDown
	}
	return ""
}
