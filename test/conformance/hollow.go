package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// realZone is the zone of the real node. Hollow nodes begin with the same one, so that zones differ in
// size: spreading over them is not the same as spreading over nodes.
const realZone = "zone-a"

// hollowDeadline is how long the first report of the hollow nodes may take.
const hollowDeadline = time.Minute

// fleet is `wherry hollow` beside the real node: nodes for specs that look at where pods are put.
type fleet struct {
	cmd *exec.Cmd
	log *os.File
	end chan struct{} // closed when it has ended; err is set then
	err error
}

// withHollow starts that many hollow nodes, and returns when they are ready.
func (n *node) withHollow(ctx context.Context, nodes int) error {
	ready, socket, err := listenReady(ctx, filepath.Join(n.dir, "hollow.sock"))
	if err != nil {
		return err
	}
	defer func() { _ = socket.Close() }() // nothing is written to it
	f := &fleet{end: make(chan struct{})}
	if f.log, err = os.Create(n.hollowLog()); err != nil {
		return err
	}
	f.cmd = exec.CommandContext(context.WithoutCancel(ctx), n.wherry, "hollow", "--kubeconfig", n.kubeconfig(), "--nodes", strconv.Itoa(nodes))
	f.cmd.Env = append(n.environ(), "NOTIFY_SOCKET="+socket.LocalAddr().String())
	f.cmd.Stdout, f.cmd.Stderr = f.log, f.log
	if err := f.cmd.Start(); err != nil {
		return errors.Join(err, f.log.Close())
	}
	go func() {
		f.err = errors.Join(f.cmd.Wait(), f.log.Close())
		close(f.end)
	}()
	n.fleet = f
	select {
	case <-ready:
		return nil
	case <-f.end:
		return f.failed(errors.New("it ended"))
	case <-time.After(hollowDeadline):
		return f.failed(fmt.Errorf("not ready after %s", hollowDeadline))
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fleet) failed(err error) error {
	doc, _ := os.ReadFile(f.log.Name()) // it only explains the error
	return fmt.Errorf("wherry hollow: %w: %s", err, strings.TrimSpace(string(doc)))
}

// close ends the fleet; its nodes go with the cluster. That it had ended before is an error: specs ran
// without its nodes.
func (f *fleet) close() error {
	select {
	case <-f.end:
		return f.failed(errors.Join(errors.New("it ended while the specs ran"), f.err))
	default:
	}
	if err := f.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	<-f.end
	if f.err != nil {
		return f.failed(f.err)
	}
	return nil
}

// listenReady makes a socket on which a daemon says that it is ready, as to systemd (sd_notify(3)), and
// a channel that is closed when one does. Whoever closes the socket ends the wait.
func listenReady(ctx context.Context, path string) (<-chan struct{}, *net.UnixConn, error) {
	p, err := (&net.ListenConfig{}).ListenPacket(ctx, "unixgram", path)
	if err != nil {
		return nil, nil, err
	}
	socket := p.(*net.UnixConn)
	ready := make(chan struct{})
	tell := sync.OnceFunc(func() { close(ready) })
	go func() {
		b := make([]byte, 4096)
		for {
			size, err := socket.Read(b)
			if err != nil {
				return // it was closed
			}
			if strings.HasPrefix(string(b[:size]), "READY=1") {
				tell()
			}
		}
	}()
	return ready, socket, nil
}
