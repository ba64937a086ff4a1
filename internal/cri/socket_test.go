package cri

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dial connects to the socket until the test ends.
func (n *node) dial() (runtimeapi.RuntimeServiceClient, runtimeapi.ImageServiceClient) {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+n.cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.must(err)
	n.t.Cleanup(func() { n.must(conn.Close()) })
	return runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
}

func TestTheSocketServesTheSame(t *testing.T) {
	n := newNode(t)
	info, err := os.Stat(n.cfg.Socket)
	n.must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	rc, ic := n.dial()

	events, err := rc.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	n.must(err)
	v, err := rc.Version(t.Context(), &runtimeapi.VersionRequest{})
	n.must(err)
	if v.RuntimeName != "wherry" || v.RuntimeApiVersion != "v1" {
		t.Errorf("version %v", v)
	}
	st, err := rc.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	n.must(err)
	for _, c := range st.Status.Conditions {
		if !c.Status {
			t.Errorf("condition %v", c)
		}
	}
	if len(st.RuntimeHandlers) < 2 || !st.Features.SupplementalGroupsPolicy || st.Info["config"] == "" {
		t.Errorf("status %v", st)
	}
	_, err = rc.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "no-such"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a missing container: %v", err)
	}
	_, err = rc.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a checkpoint: %v", err)
	}
	for n.events.listened() == false {
		time.Sleep(time.Millisecond)
	}
	p := n.pod()
	id := p.create(containerConfig("c", "sleep", "1000"))
	for {
		e, err := events.Recv()
		n.must(err)
		if e.ContainerId == id {
			break
		}
	}
	list, err := rc.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
	n.must(err)
	all := 0
	for {
		batch, err := list.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		n.must(err)
		all += len(batch.Containers)
	}
	if all != 1 {
		t.Errorf("%d containers", all)
	}
	imgs, err := ic.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil || len(imgs.Images) != 1 {
		t.Errorf("images %v, %v", imgs, err)
	}
	if _, err := New(t.Context(), n.cfg, n.images); err == nil || !strings.Contains(err.Error(), "another process is already serving it") {
		t.Errorf("a second server of a running instance: %v", err)
	}
	if _, err := rc.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Errorf("the first one no longer answers: %v", err)
	}
}

func TestListOverTheSocketFollowsTheState(t *testing.T) {
	p := newNode(t).pod()
	rc, _ := p.dial()
	same := func() {
		t.Helper()
		want, err := p.run.ListContainers(t.Context(), nil)
		p.must(err)
		got, err := rc.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		p.must(err)
		if !proto.Equal(got, &runtimeapi.ListContainersResponse{Containers: want}) {
			t.Errorf("over the socket: %v\nin process: %v", got, want)
		}
	}
	same()
	p.create(containerConfig("other", "sleep", "1000"))
	id := p.create(containerConfig("c", "sleep", "1000"))
	same()
	p.must(p.run.StartContainer(t.Context(), id))
	same()
	p.must(p.run.StopContainer(t.Context(), id, 0))
	same()
	p.must(p.run.RemoveContainer(t.Context(), id))
	same()
	got, err := rc.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: "no-such"}})
	p.must(err)
	if len(got.Containers) != 0 {
		t.Errorf("a filter that nothing matches: %v", got)
	}
}
