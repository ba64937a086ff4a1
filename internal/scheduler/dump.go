package scheduler

import (
	"context"
	"slices"
	"strings"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Dump logs what is in the cache and in the queue.
func (s *Scheduler) Dump(ctx context.Context) {
	log := klog.FromContext(ctx)
	s.cycle.Lock()
	s.cache.Update(s.snapshot)
	nodes := slices.Clone(s.snapshot.Nodes())
	s.cycle.Unlock()
	slices.SortFunc(nodes, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	log.Info("Dump of the scheduler's cache", "nodes", len(nodes))
	for _, n := range nodes {
		log.Info("Node in the scheduler's cache", "node", klog.KObj(n.Node()), "pods", len(n.GetPods()), "generation", n.GetGeneration(),
			"requested", n.GetRequested(), "allocatable", n.GetAllocatable())
		for _, p := range n.GetPods() {
			log.Info("Pod in the scheduler's cache", "node", klog.KObj(n.Node()), "pod", klog.KObj(p.GetPod()), "uid", p.GetPod().UID)
		}
	}
	for _, w := range s.queue.All() {
		log.Info("Pod in the scheduling queue", "pod", klog.KObj(w.Info.GetPod()), "place", w.Place, "since", w.Since, "attempts", w.Info.Attempts,
			"rejectedBy", w.Info.UnschedulablePlugins.UnsortedList(), "gate", w.Info.GatingPlugin, "nominatedNode", s.queue.Nominator().NodeOf(w.Info.GetPod().UID))
	}
}
