package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/inbound"
)

// healths are the servers of which load balancers ask whether a service has endpoints on this node
// (healthCheckNodePort).
type healths struct {
	proxy    func() bool // whether the proxy itself is healthy
	mu       sync.Mutex
	services map[string]*health
}

type health struct {
	proxy     func() bool
	mu        sync.Mutex
	namespace string
	name      string
	port      int32
	addresses []netip.Addr
	ready     int
	servers   []*http.Server
	running   sync.WaitGroup
}

func newHealths(proxy func() bool) *healths {
	return &healths{proxy: proxy, services: map[string]*health{}}
}

// set opens, changes or closes (port 0) the server of a service.
func (hs *healths) set(ctx context.Context, namespace, name string, r *Rules, addresses []netip.Addr) error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	key := namespace + "/" + name
	h := hs.services[key]
	if h != nil && h.port != r.HealthPort {
		h.close()
		delete(hs.services, key)
		h = nil
	}
	if r.HealthPort == 0 {
		return nil
	}
	if h == nil {
		h = &health{proxy: hs.proxy, namespace: namespace, name: name, port: r.HealthPort, addresses: addresses}
		if err := h.open(ctx); err != nil {
			return err
		}
		hs.services[key] = h
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = r.LocalReady
	return nil
}

// closeAll closes all servers, and waits for them.
func (hs *healths) closeAll() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for key, h := range hs.services {
		h.close()
		delete(hs.services, key)
	}
}

func (h *health) open(ctx context.Context) error {
	for _, ip := range h.addresses {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(ip, uint16(h.port)).String())
		if err != nil {
			h.close()
			return fmt.Errorf("node port %d of service %s/%s for health checks: %w", h.port, h.namespace, h.name, err)
		}
		bound := inbound.Bound(l)
		s := &http.Server{
			Handler: bound.Handler(h), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
			BaseContext: func(net.Listener) context.Context { return ctx },
		}
		h.servers = append(h.servers, s)
		h.running.Go(func() {
			if err := s.Serve(bound); err != nil && !errors.Is(err, http.ErrServerClosed) {
				klog.FromContext(ctx).Error(err, "Health checks of a service cannot be answered", "service", klog.KRef(h.namespace, h.name))
			}
		})
	}
	return nil
}

func (h *health) close() {
	for _, s := range h.servers {
		_ = s.Close() // closes what is open
	}
	h.running.Wait()
}

// ServeHTTP implements http.Handler, with upstream's answer.
func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	ready := h.ready
	h.mu.Unlock()
	healthy, code := h.proxy(), http.StatusOK
	if ready == 0 || !healthy {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(ready))
	answerJSON(w, code, map[string]any{
		"service":        map[string]string{"namespace": h.namespace, "name": h.name},
		"localEndpoints": ready, "serviceProxyHealthy": healthy,
	}, "\t")
}

// answerJSON answers with strings, numbers and the like.
func answerJSON(w http.ResponseWriter, code int, v any, indent string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", indent)
	_ = e.Encode(v) // a client that is gone needs no answer
}
