package prober

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

const userAgent = "kube-probe/1.37"

// dialer sets no keep-alive: a probe's connection lasts for one exchange.
var dialer = net.Dialer{KeepAlive: -1}

// dial makes a connection that closes with a reset, so that probes leave no sockets in TIME_WAIT.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := dialer.DialContext(ctx, network, addr)
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		_ = tcp.SetLinger(0)
	}
	return c, err
}

// Dial connects to a container.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// network connects to containers that are probed by address.
type network struct {
	dial Dial
	// transport makes a connection for each probe, and accepts any certificate: a pod has no name
	// that could be verified.
	transport *http.Transport
}

func newNetwork(dial Dial) *network {
	return &network{dial, &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DialContext:        dial,
		DisableKeepAlives:  true,
		DisableCompression: true,
		Proxy:              nil,
	}}
}

// httpGet succeeds on a status from 200 to 399. A redirect to another host is a success with a
// warning: probing that host would not probe this container.
func (n *network) httpGet(ctx context.Context, get *v1.HTTPGetAction, spec *v1.Container, ip string, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := pods.HTTPRequest(ctx, get, spec, ip, userAgent)
	if err != nil {
		return answer{err: err}
	}
	if req.URL.Scheme == "http" {
		if a, ok := n.plainGet(req); ok {
			return a
		}
	}
	client := &http.Client{Transport: n.transport, CheckRedirect: pods.StayOnHost}
	resp, err := client.Do(req)
	if err != nil {
		return answer{verdict: failure, text: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	return judge(resp)
}

// judge returns what a response means.
func judge(resp *http.Response) answer {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return answer{verdict: failure, text: err.Error()}
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 400 {
		if resp.StatusCode >= 300 {
			return answer{verdict: warning, text: fmt.Sprintf("Probe terminated redirects, Response body: %s", body)}
		}
		return answer{verdict: success, text: string(body)}
	}
	return answer{verdict: failure, text: fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}
}

func (n *network) tcpConnect(ctx context.Context, host string, port int, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := n.dial(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return answer{verdict: failure, text: err.Error()}
	}
	_ = c.Close()
	return answer{verdict: success}
}

// grpcHealth queries the gRPC health service (grpc.health.v1).
func (n *network) grpcHealth(ctx context.Context, ip string, port int, service string, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addr := net.JoinHostPort(ip, strconv.Itoa(port))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(userAgent),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return n.dial(ctx, "tcp", a) }))
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = conn.Close() }()
	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{})
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return answer{verdict: failure, text: fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", status.Convert(err).Message())}
	case status.Code(err) == codes.DeadlineExceeded:
		return answer{verdict: failure, text: fmt.Sprintf("timeout: health rpc did not complete within %v", timeout)}
	case status.Code(err) == codes.Unavailable:
		return answer{verdict: failure, text: fmt.Sprintf("error: failed to connect service at %q: %+v", addr, err)}
	case err != nil:
		return answer{verdict: failure, text: fmt.Sprintf("error: health rpc probe failed: %+v", err)}
	case resp.Status != grpc_health_v1.HealthCheckResponse_SERVING:
		return answer{verdict: failure, text: fmt.Sprintf("service unhealthy (responded with %q)", resp.Status)}
	}
	return answer{verdict: success}
}
