package printers

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry"
)

// nodeLost is the reason of a pod whose node has become unreachable.
const nodeLost = "NodeLost"

// Pods is the table of pods.
var Pods = registry.Table[*corev1.Pod]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
		column("Status", "The aggregate status of the containers in this pod."),
		column("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
		ageColumn,
		wide("IP", corev1.PodStatus{}.SwaggerDoc()["podIP"]),
		wide("Node", corev1.PodSpec{}.SwaggerDoc()["nodeName"]),
		wide("Nominated Node", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
		wide("Readiness Gates", corev1.PodSpec{}.SwaggerDoc()["readinessGates"]),
	},
	Cells: func(p *corev1.Pod, now time.Time) []any {
		s := summarize(p)
		ip := ""
		if len(p.Status.PodIPs) > 0 {
			ip = p.Status.PodIPs[0].IP
		}
		return []any{
			p.Name, fmt.Sprintf("%d/%d", s.ready, s.containers), s.reason, s.restarted(now), age(p, now),
			orNone(ip), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), gates(p),
		}
	},
	Conditions: func(p *corev1.Pod) []metav1.TableRowCondition {
		completed := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue}
		switch p.Status.Phase {
		case corev1.PodSucceeded:
			completed.Reason, completed.Message = string(corev1.PodSucceeded), "The pod has completed successfully."
		case corev1.PodFailed:
			completed.Reason, completed.Message = string(corev1.PodFailed), "The pod failed."
		default:
			return nil
		}
		return []metav1.TableRowCondition{completed}
	},
}

// podSummary is what a line about a pod shows.
type podSummary struct {
	ready, containers int
	reason            string
	restarts          int
	lastRestart       time.Time
}

func (s *podSummary) restarted(now time.Time) string {
	n := strconv.Itoa(s.restarts)
	if s.restarts == 0 || s.lastRestart.IsZero() {
		return n
	}
	return fmt.Sprintf("%s (%s ago)", n, since(s.lastRestart, now))
}

// count adds a container's restarts.
func (s *podSummary) count(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(s.lastRestart) {
		s.lastRestart = t.FinishedAt.Time
	}
}

// summarize finds the one word that describes a pod best: while it initializes, the state of its
// init containers; later, what is wrong with a container, or else the phase.
func summarize(p *corev1.Pod) podSummary {
	s := podSummary{containers: len(p.Spec.Containers), reason: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := sidecarNames(p)
	s.containers += len(sidecars)
	if initializing := s.initContainers(p, sidecars); !initializing || condition(p, corev1.PodInitialized) {
		s.mainContainers(p, sidecars)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == nodeLost:
			s.reason = "Unknown"
		case !pods.IsTerminal(p.Status.Phase):
			s.reason = "Terminating"
		}
	}
	return s
}

func sidecarNames(p *corev1.Pod) map[string]bool {
	names := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; pods.IsSidecar(c) {
			names[c.Name] = true
		}
	}
	return names
}

// initContainers looks at the init containers up to the first that is not done, and reports whether
// there is one.
func (s *podSummary) initContainers(p *corev1.Pod, sidecars map[string]bool) bool {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.count(c)
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case c.State.Terminated != nil:
			s.reason = "Init:" + terminatedReason(c.State.Terminated)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "" && c.State.Waiting.Reason != "PodInitializing":
			s.reason = "Init:" + c.State.Waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true
	}
	return false
}

func terminatedReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

// mainContainers counts the containers. It drops the restarts of init containers, except those of
// sidecars.
func (s *podSummary) mainContainers(p *corev1.Pod, sidecars map[string]bool) {
	s.restarts, s.lastRestart = 0, time.Time{}
	for i := range p.Status.InitContainerStatuses {
		if c := &p.Status.InitContainerStatuses[i]; sidecars[c.Name] {
			s.count(c)
		}
	}
	running, failure := false, ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.count(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = terminatedReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason != "Completed" {
		return
	}
	switch {
	case running && condition(p, corev1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) bool {
	c := pods.FindCondition(&p.Status, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

func gates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	met := 0
	for _, g := range p.Spec.ReadinessGates {
		if condition(p, g.ConditionType) {
			met++
		}
	}
	return fmt.Sprintf("%d/%d", met, len(p.Spec.ReadinessGates))
}
