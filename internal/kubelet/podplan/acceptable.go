package podplan

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// Acceptable returns want, changed so that the API server accepts it over has: a container that was
// reported to have ended for good stays so. Such a container is an init container that runs again
// in a new sandbox, or an instance that shows up after its pod has ended.
func Acceptable(pod *v1.Pod, has, want v1.PodStatus) v1.PodStatus {
	final := pods.IsTerminal(has.Phase)
	want.InitContainerStatuses = stayEnded(pod, final, has.InitContainerStatuses, want.InitContainerStatuses)
	want.ContainerStatuses = stayEnded(pod, final, has.ContainerStatuses, want.ContainerStatuses)
	want.EphemeralContainerStatuses = stayEnded(pod, final, has.EphemeralContainerStatuses, want.EphemeralContainerStatuses)
	return want
}

func stayEnded(pod *v1.Pod, final bool, has, want []v1.ContainerStatus) []v1.ContainerStatus {
	out := want
	for i := range want {
		at := slices.IndexFunc(has, func(h v1.ContainerStatus) bool { return h.Name == want[i].Name })
		if at < 0 || want[i].State.Terminated != nil || has[at].State.Terminated == nil {
			continue
		}
		if c := pods.FindContainer(pod, want[i].Name); !final && c != nil && pods.MayRunAgain(pod, c, has[at].State.Terminated.ExitCode) {
			continue
		}
		if &out[0] == &want[0] {
			out = slices.Clone(want)
		}
		out[i] = has[at]
		out[i].RestartCount, out[i].VolumeMounts = max(has[at].RestartCount, want[i].RestartCount), want[i].VolumeMounts
	}
	return out
}
