package cri

import (
	"bytes"
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A kubelet without events lists all containers every second. Only the state of a listed
// container ever changes, so for the socket each container is encoded once per state.

// wireItem is an encoded item of a ListContainersResponse: a container in one state.
type wireItem struct {
	state runtimeapi.ContainerState
	doc   []byte // tag, length, container
}

// containersField is the number of ListContainersResponse.containers (CRI v1).
const containersField = 1

// ListContainers returns the Server's list, assembled from encoded containers.
func (r runtimeServer) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	found := r.matchingContainers(req.GetFilter())
	items := make([][]byte, len(found))
	for i, c := range found {
		var err error
		if items[i], err = c.wire(); err != nil {
			return nil, err
		}
	}
	// Unknown fields of a message are sent as they are.
	resp := &runtimeapi.ListContainersResponse{}
	resp.ProtoReflect().SetUnknown(bytes.Join(items, nil))
	return resp, nil
}

func (c *container) wire() ([]byte, error) {
	if have := c.encoded.Load(); have != nil && have.state == c.current().state() {
		return have.doc, nil
	}
	sum := c.summary()
	doc, err := proto.Marshal(sum)
	if err != nil {
		return nil, err
	}
	doc = protowire.AppendBytes(protowire.AppendTag(nil, containersField, protowire.BytesType), doc)
	c.encoded.Store(&wireItem{sum.State, doc})
	return doc, nil
}
