package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientrc "k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// TestNobodyAsksForWhatWasRead: the connection can be closed, and nothing of it stays.
func TestNobodyAsksForWhatWasRead(t *testing.T) {
	client, server := net.Pipe()
	left := make(chan struct{})
	c := watch(server, server, func() { close(left) })
	if _, err := client.Write([]byte("more than anybody wants")); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Error("it is still read")
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

// silent is a container that says nothing. What is attached to it ends with its context.
type silent struct {
	streaming.Runtime
	attached chan struct{}
	left     chan error
}

func (s silent) Attach(ctx context.Context, _ string, _ io.Reader, _, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	s.attached <- struct{}{}
	<-ctx.Done()
	s.left <- ctx.Err()
	return ctx.Err()
}

// TestWhoLeavesIsNoLongerAttached: also if the container says nothing, so that nothing is written to the client. Each one
// that had left kept its connections until the container ended.
func TestWhoLeavesIsNoLongerAttached(t *testing.T) {
	r := silent{attached: make(chan struct{}), left: make(chan error, 1)}
	s, err := NewServer("127.0.0.1:0", r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	res, err := s.GetAttach(&runtimeapi.AttachRequest{ContainerId: "c", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(res.Url)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientrc.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	streamed := make(chan error, 1)
	go func() { streamed <- client.StreamWithContext(ctx, clientrc.StreamOptions{Stdout: io.Discard}) }()
	select {
	case <-r.attached:
	case err := <-streamed:
		t.Fatal("not attached: ", err)
	}
	select {
	case err := <-r.left:
		t.Fatal("it left by itself: ", err)
	case <-time.After(50 * time.Millisecond):
	}
	leave()
	select {
	case err := <-r.left:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it is still attached")
	}
	if err := <-streamed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
