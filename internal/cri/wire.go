package cri

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A kubelet without events lists all containers each second. Of a container in a list
// only the state ever changes, so over the socket each is encoded once for a state.

// wireItem is a container as an item of a ListContainersResponse, in that state.
type wireItem struct {
	state runtimeapi.ContainerState
	doc   []byte // tag, length, container
}

// containersField is the number of ListContainersResponse.containers (CRI v1).
const containersField = 1

// ListContainers is the Server's list, put together from encoded containers.
func (r runtimeServer) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	var doc []byte
	for _, c := range r.matchingContainers(req.GetFilter()) {
		item, err := c.wire()
		if err != nil {
			return nil, err
		}
		doc = append(doc, item...)
	}
	// Bytes of fields that a message does not know are sent as they are.
	resp := &runtimeapi.ListContainersResponse{}
	resp.ProtoReflect().SetUnknown(doc)
	return resp, nil
}

func (c *container) wire() ([]byte, error) {
	sum := c.summary()
	if have := c.encoded.Load(); have != nil && have.state == sum.State {
		return have.doc, nil
	}
	doc, err := proto.Marshal(sum)
	if err != nil {
		return nil, err
	}
	doc = protowire.AppendBytes(protowire.AppendTag(nil, containersField, protowire.BytesType), doc)
	c.encoded.Store(&wireItem{sum.State, doc})
	return doc, nil
}
