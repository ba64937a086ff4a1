package server

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/fakecri"
)

// checkpoints is a runtime that makes checkpoints, or fails with err.
type checkpoints struct {
	fakecri.Service
	asked *runtimeapi.CheckpointContainerRequest
	err   error
}

func (c *checkpoints) CheckpointContainer(_ context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	c.asked = req
	return c.err
}

func TestCheckpoint(t *testing.T) {
	f := newFixture(t)
	rt := &checkpoints{Service: fakecri.Service{Runtime: f.rt}}
	s := New(Config{Debugging: true, Checkpoints: "/root/checkpoints"}, f.pods, rt)
	code, body := answer(t, s.mux, "POST", "/checkpoint/ns/p/c?timeout=1&timeout=7", "")
	var got struct{ Items []string }
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || len(got.Items) != 1 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	name := regexp.MustCompile(`^/root/checkpoints/checkpoint-p_ns-c-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\.tar$`)
	if !name.MatchString(got.Items[0]) || rt.asked.Location != got.Items[0] || rt.asked.ContainerId != "c1" || rt.asked.Timeout != 7 {
		t.Errorf("%s, %+v", body, rt.asked)
	}
	rt.err = status.Error(codes.Unimplemented, "no checkpoints here")
	if code, body = answer(t, s.mux, "POST", "/checkpoint/ns/p/c", ""); code != 500 ||
		body != "checkpointing of ns/p/c failed (rpc error: code = Unimplemented desc = no checkpoints here)\n" {
		t.Errorf("%d %s", code, body)
	}
	f.pods.snap.Input.Containers[1].State = podplan.Exited
	if code, body = answer(t, s.mux, "POST", "/checkpoint/ns/p/c", ""); code != 500 || body != "checkpointing of ns/p/c failed (container c not found)\n" {
		t.Errorf("%d %s", code, body)
	}
}

func TestCheckpointsHaveAPermissionOfTheirOwn(t *testing.T) {
	f := newFixture(t, "checkpoint")
	if code, body := f.do("POST", "/checkpoint/ns/p/c", "admin"); code != 403 || !strings.Contains(body, "verb=create, resource=nodes, subresource(s)=[checkpoint]") {
		t.Errorf("%d %s", code, body)
	}
	f = newFixture(t, "proxy")
	if code, body := f.do("POST", "/checkpoint/ns/p/none", "admin"); code != 404 {
		t.Errorf("%d %s", code, body)
	}
}
