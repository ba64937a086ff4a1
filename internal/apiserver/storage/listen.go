package storage

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"k8s.io/klog/v2"

	"wherry.dev/internal/inbound"
)

// etcd's own listener would take connections of strangers until the process has no files left.

// peerServer serves the etcds of other servers.
type peerServer struct {
	listener *inbound.Listener
	tls      *tls.Config
	http     *http.Server
}

// headerPatience is how long a request's header may take.
const headerPatience = 10 * time.Second

func listenForPeers(p *Peers) (*peerServer, error) {
	cfg, err := p.tls().ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("the certificate for other servers: %w", err)
	}
	cfg.MinVersion, cfg.NextProtos = tls.VersionTLS13, []string{"http/1.1"}
	l, err := net.Listen("tcp", p.Address)
	if err != nil {
		return nil, err
	}
	return &peerServer{listener: inbound.Bound(l), tls: cfg}, nil
}

// serve serves them until close. Whoever reaches the handler has a certificate of a server.
func (s *peerServer) serve(server *etcdserver.EtcdServer) {
	peers := etcdhttp.NewPeerHandler(server.Logger(), server)
	s.http = &http.Server{
		Handler: s.listener.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inbound.Proven(r.Context())
			peers.ServeHTTP(w, r)
		})),
		ReadHeaderTimeout: headerPatience, ErrorLog: log.New(io.Discard, "", 0), // strangers' handshakes
	}
	go func() {
		err := s.http.Serve(tls.NewListener(writing{s.listener}, s.tls))
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			klog.Background().Error(err, "Other servers cannot reach this one any more")
		}
	}()
}

func (s *peerServer) close() error {
	if s == nil {
		return nil
	}
	if s.http != nil {
		return s.http.Close()
	}
	return s.listener.Close()
}

// writing makes connections end on which the other side takes nothing any more, after the time that etcd's own have.
type writing struct{ net.Listener }

// Accept implements net.Listener.
func (w writing) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return writingConn{c}, nil
}

type writingConn struct{ net.Conn }

// Write implements net.Conn.
func (c writingConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(rafthttp.ConnWriteTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
