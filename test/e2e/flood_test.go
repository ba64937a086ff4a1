package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/test/images"
)

// TestConnectionsOfStrangersDoNotEndTheNode: with 256 files for everything, 250 connections to each
// port that strangers can reach, some silent, some in the middle of TLS.
func TestConnectionsOfStrangersDoNotEndTheNode(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.files = 256
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("before"))
	c.await("before", "ready", ready)
	pid := c.pid()
	api, kubelet := c.flags[3], c.flags[5]
	for i := range 500 {
		port := api
		if i%2 == 1 {
			port = kubelet
		}
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		switch i % 5 {
		case 0:
			// half a request over TLS
			cfg := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a stranger does not verify
			if s := tls.Client(conn, cfg); s.HandshakeContext(t.Context()) == nil {
				_, _ = fmt.Fprint(s, "GET / HTTP/1.1\r\n") // it may be closed already
			}
		case 1:
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1}) // half a ClientHello
		}
	}
	// a client that connects now, over the network, and everything behind it
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	c.create(busybox("during"))
	c.await("during", "ready", ready)
	if out := c.kubectl("exec", "during", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("exec: %q", out)
	}
	c.delete("before")
	if now := c.pid(); now != pid {
		t.Errorf("the node ended: process %d, then %d", pid, now)
	}
}
