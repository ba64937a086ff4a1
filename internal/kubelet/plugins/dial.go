package plugins

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// longest is how long a socket's path may be for the kernel.
const longest = len(unix.RawSockaddrUnix{}.Path) - 1

// Dial returns a connection to a plugin's socket, which is made when it is used. The socket's path, with or without
// unix:// before it, may be longer than the kernel takes, as it is in a deep --data-dir.
func Dial(socket string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(socket, "unix://")
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	if len(path) > longest {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialLong(ctx, path) }))
	}
	return grpc.NewClient("unix:"+path, options...)
}

// dialLong names a socket by its folder's descriptor.
func dialLong(ctx context.Context, path string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
