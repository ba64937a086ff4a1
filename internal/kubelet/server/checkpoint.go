package server

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// checkpoint makes the runtime write a container's state to an archive, and responds with the
// archive's path (KEP-2008).
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	pod, name := p.Pod, r.PathValue("container")
	if pods.FindContainer(pod, name) == nil {
		http.Error(w, fmt.Sprintf("container %s does not exist", name), http.StatusNotFound)
		return
	}
	req := &runtimeapi.CheckpointContainerRequest{Location: filepath.Join(s.cfg.Checkpoints,
		fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, name, time.Now().Format(time.RFC3339)))}
	if given := r.URL.Query()["timeout"]; len(given) > 0 { // in seconds; the last one counts
		var err error
		if req.Timeout, err = strconv.ParseInt(given[len(given)-1], 10, 64); err != nil {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
			return
		}
	}
	c, ok := running(p, name)
	err := fmt.Errorf("container %s not found", name)
	if ok {
		req.ContainerId = c.ID
		err = s.runtime.CheckpointContainer(r.Context(), req)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %s/%s/%s failed (%v)", pod.Namespace, pod.Name, name, err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, map[string][]string{"items": {req.Location}})
}
