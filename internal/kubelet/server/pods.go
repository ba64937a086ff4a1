package server

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/waits"
)

// listPods returns the pods that the node should run, with their newest status.
func (s *Server) listPods(w http.ResponseWriter, _ *http.Request) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, p := range s.pods.List() {
		if p.Wanted() {
			list.Items = append(list.Items, *p.Newest())
		}
	}
	slices.SortFunc(list.Items, byName)
	writeJSON(w, list)
}

func byName(a, b v1.Pod) int {
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}

// runningPods returns the pods that run according to the runtime.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	containers, err := s.runtime.ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	found := map[string]*v1.Pod{}
	for _, c := range containers {
		uid := c.Labels[pods.LabelPodUID]
		if uid == "" {
			continue
		}
		if found[uid] == nil {
			found[uid] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: c.Labels[pods.LabelPodName], Namespace: c.Labels[pods.LabelPodNamespace], UID: types.UID(uid),
			}}
		}
		found[uid].Spec.Containers = append(found[uid].Spec.Containers, v1.Container{
			Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage(),
		})
	}
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, p := range found {
		list.Items = append(list.Items, *p)
	}
	slices.SortFunc(list.Items, byName)
	writeJSON(w, list)
}

// debugPods lists the pods' workers, one line each.
func (s *Server) debugPods(w http.ResponseWriter, _ *http.Request) {
	out := []podworker.Summary{}
	for _, p := range s.pods.List() {
		out = append(out, p.Summary())
	}
	slices.SortFunc(out, func(a, b podworker.Summary) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
	})
	writeJSON(w, out)
}

// debugPod returns what the worker of a pod last saw, decided and did.
func (s *Server) debugPod(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pods.Get(types.UID(r.PathValue("uid")))
	if !ok || p.Pod == nil {
		http.Error(w, report.NoPod, http.StatusNotFound)
		return
	}
	writeJSON(w, p.Dump())
}

// reportPod says in words what a pod waits for. A static pod is also found by name: the caller may
// know only the UID of its mirror.
func (s *Server) reportPod(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pods.Get(types.UID(r.PathValue("uid")))
	if !ok || p.Pod == nil {
		p, ok = s.pods.ByName(r.PathValue("namespace"), r.PathValue("name"))
		ok = ok && p.Static
	}
	if !ok {
		http.Error(w, report.NoPod, http.StatusNotFound)
		return
	}
	dump := p.Dump()
	writeJSON(w, waits.Report(p.Pod.UID, &dump, time.Now()))
}

// tracePod serves the steps in a pod's life on this node.
func (s *Server) tracePod(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Trace != nil {
		if t, ok := s.cfg.Trace(r.PathValue("uid")); ok {
			writeJSON(w, t)
			return
		}
	}
	http.Error(w, "no trace of this pod", http.StatusNotFound)
}
