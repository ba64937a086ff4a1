package kubelet

import (
	"context"
	"io"
	"os"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// admit decides on a pod, one at a time, against those that were admitted before.
func (k *Kubelet) admit(_ context.Context, pod *v1.Pod, static bool) podplan.Verdict {
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	var others []*v1.Pod
	for _, s := range k.table.List() {
		if s.Pod.UID == pod.UID {
			continue
		}
		if s.Input.Record.Verdict != nil {
			delete(k.admitting, s.Pod.UID)
		}
		if taken(s) || k.admitting[s.Pod.UID] {
			others = append(others, podplan.WithAllocated(s.Pod, s.Input.Record.Verdict))
		}
	}
	v := podplan.Admit(podplan.AdmitInput{
		Pod: pod, Node: k.node.Node(), Others: others, Static: static, AllowedSysctls: k.cfg.AllowedUnsafeSysctls,
	})
	if !v.Admitted {
		metrics.Rejections.WithLabelValues(v.Reason).Inc()
		k.events.Eventf(pod, v1.EventTypeWarning, v.Reason, "%s", v.Message)
		return v
	}
	// Its worker publishes the verdict a moment later; until then it counts here.
	k.admitting[pod.UID] = true
	return v
}

// taken tells whether a pod holds resources of the node.
func taken(s podworker.Snapshot) bool {
	v := s.Input.Record.Verdict
	return v != nil && v.Admitted && s.Plan.Life != podplan.PodTerminated
}

// maxMessage is how much of a termination message is kept, in bytes.
const (
	maxMessage  = 4096
	maxLogBytes = 2048
	maxLogLines = 80
)

// finalMessage reads a dead instance's termination message: its file, or where
// the pod asks for it, the end of its log.
func (k *Kubelet) finalMessage(pod *v1.Pod, c *podplan.Container, logPath string) string {
	msg := readStart(k.dirs.MessageFile(pod.UID, c.Name, c.Attempt), maxMessage)
	spec := podplan.FindContainer(pod, c.Name)
	if msg != "" || spec == nil || c.ExitCode == 0 || spec.TerminationMessagePolicy != v1.TerminationMessageFallbackToLogsOnError {
		return msg
	}
	return logs.Tail(logPath, maxLogLines, maxLogBytes)
}

func readStart(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	return string(data)
}
