package server

import (
	"fmt"
	"net/http"

	"wherry.dev/internal/kubelet/podplan"
)

// checkpoint looks for the container as upstream does, and then says that there is
// no such feature (KEP-2008): the runtime makes no checkpoints.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	name := r.PathValue("container")
	if podplan.FindContainer(p.Pod, name) == nil {
		http.Error(w, fmt.Sprintf("container %s does not exist", name), http.StatusNotFound)
		return
	}
	http.Error(w, fmt.Sprintf("checkpointing of %s/%s/%s is not supported by this kubelet; delete and recreate the pod instead",
		p.Pod.Namespace, p.Pod.Name, name), http.StatusNotImplemented)
}
