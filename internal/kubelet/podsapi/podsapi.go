// Package podsapi tells agents on the node which pods it has (k8s.io/kubelet/pkg/apis/pods, KEP-4188), so that they need not ask
// the API server: at a socket that only root can reach.
package podsapi

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"wherry.dev/internal/kubelet/agentsocket"
	"wherry.dev/internal/kubelet/podworker"
)

// Run serves at a socket until ctx ends.
func Run(ctx context.Context, socket string, pods *podworker.Pods) error {
	return agentsocket.Serve(ctx, socket, func(s *grpc.Server) { podsapi.RegisterPodsServer(s, &server{pods: pods}) })
}

type server struct {
	podsapi.UnimplementedPodsServer
	pods *podworker.Pods
}

// list returns the pods that sources have, by UID.
func (s *server) list() []*podworker.Snapshot {
	all := slices.DeleteFunc(s.pods.List(), func(p *podworker.Snapshot) bool { return !p.Wanted() })
	slices.SortFunc(all, func(a, b *podworker.Snapshot) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	return all
}

// encode returns a pod as it goes over the wire.
func encode(pod *v1.Pod) ([]byte, error) {
	doc, err := pod.Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "failed to marshal pod: %v", err)
	}
	return doc, nil
}

// ListPods implements podsapi.PodsServer.
func (s *server) ListPods(context.Context, *podsapi.ListPodsRequest) (*podsapi.ListPodsResponse, error) {
	out := &podsapi.ListPodsResponse{}
	for _, p := range s.list() {
		doc, err := encode(p.Newest())
		if err != nil {
			return nil, err
		}
		out.Pods = append(out.Pods, doc)
	}
	return out, nil
}

// GetPod implements podsapi.PodsServer.
func (s *server) GetPod(_ context.Context, in *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	p, ok := s.pods.Get(types.UID(in.GetPodUID()))
	if !ok || !p.Wanted() {
		return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", in.GetPodUID())
	}
	doc, err := encode(p.Newest())
	return &podsapi.GetPodResponse{Pod: doc}, err
}

// WatchPods implements podsapi.PodsServer. Changes that come faster than the client reads become one.
func (s *server) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	changes, stop := s.pods.Watch()
	defer stop()
	w := &watch{stream: stream, seed: maphash.MakeSeed(), sent: map[types.UID]sent{}}
	for _, p := range s.list() {
		if err := w.tell(p.Pod.UID, p); err != nil {
			return err
		}
	}
	if err := stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changes.More():
		}
		for _, uid := range changes.Take() {
			var now *podworker.Snapshot
			if p, ok := s.pods.Get(uid); ok && p.Wanted() {
				now = &p
			}
			if err := w.tell(uid, now); err != nil {
				return err
			}
		}
	}
}

// watch is what one client has been told.
type watch struct {
	stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]
	seed   maphash.Seed
	sent   map[types.UID]sent
}

// sent is what a client knows of a pod.
type sent struct {
	namespace, name string
	sum             uint64 // of the pod
}

// tell sends what a pod is now, if the client does not know it; now is nil if no source has the pod.
func (w *watch) tell(uid types.UID, now *podworker.Snapshot) error {
	before, known := w.sent[uid]
	if now == nil {
		if !known {
			return nil
		}
		delete(w.sent, uid)
		doc, err := encode(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: before.namespace, Name: before.name, UID: uid}})
		if err != nil {
			return err
		}
		return w.stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_DELETED, Pod: doc})
	}
	doc, err := encode(now.Newest())
	if err != nil {
		return err
	}
	sum := maphash.Bytes(w.seed, doc)
	if known && sum == before.sum {
		return nil
	}
	w.sent[uid] = sent{now.Pod.Namespace, now.Pod.Name, sum}
	event := podsapi.EventType_ADDED
	if known {
		event = podsapi.EventType_MODIFIED
	}
	return w.stream.Send(&podsapi.WatchPodsEvent{Type: event, Pod: doc})
}
