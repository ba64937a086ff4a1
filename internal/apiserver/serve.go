package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// listen binds the port. If the port is in use, the error says what to change.
func listen(ctx context.Context, cfg *Config) (net.Listener, error) {
	addr := net.JoinHostPort(cfg.BindAddress.String(), strconv.Itoa(cfg.SecurePort))
	l, err := own(&cfg.Serving).Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d on %s is in use by another program; choose another one with --secure-port", cfg.SecurePort, cfg.BindAddress)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this machine; choose another one with --bind-address", cfg.BindAddress)
	case err != nil:
		return nil, fmt.Errorf("listen on %s (--bind-address, --secure-port): %w", addr, err)
	}
	return l, nil
}

// own returns what binds the port, for others, too, if they may share it.
func own(o *ServingOptions) *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !o.SharePort {
			return nil
		}
		var err error
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(failed, err)
	}}
}

// advertiseAddress returns the address at which others reach this host: the bind address if it is a
// single one, else the address of the interface with the default route, else loopback on a machine
// without a network.
func advertiseAddress(bind net.IP) (net.IP, error) {
	if bind != nil && !bind.IsUnspecified() {
		return bind, nil
	}
	ip, err := utilnet.ResolveBindAddress(bind)
	if err == nil {
		return ip, nil
	}
	if utilnet.IsNoRoutesError(err) {
		return net.IPv4(127, 0, 0, 1), nil
	}
	return nil, fmt.Errorf("cannot find this host's address; set --advertise-address: %w", err)
}

// advertised returns the host and port at which others reach us.
func (s *Server) advertised() string {
	return net.JoinHostPort(s.cfg.AdvertiseAddress.String(), strconv.Itoa(s.cfg.SecurePort))
}
