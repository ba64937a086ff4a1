package container

import (
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

// Wire returns its encoded item of a ListContainersResponse.
func (c *Container) Wire() ([]byte, error) {
	if have := c.encoded.Load(); have != nil && have.state == c.current().state() {
		return have.doc, nil
	}
	sum := c.Summary()
	doc, err := proto.Marshal(sum)
	if err != nil {
		return nil, err
	}
	doc = protowire.AppendBytes(protowire.AppendTag(nil, containersField, protowire.BytesType), doc)
	c.encoded.Store(&wireItem{sum.State, doc})
	return doc, nil
}
