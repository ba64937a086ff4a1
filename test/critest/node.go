package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/mount"
)

// node is `wherry cri` in folders of its own, with registries on loopback.
type node struct {
	dir    string
	id     string
	subnet netip.Prefix
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process is gone
	exit   error         // of the process, once it is
	*registries
}

// newNode starts everything below dir and returns when the socket answers.
func newNode(ctx context.Context, wherry, dir string) (n *node, err error) {
	n = &node{
		dir: dir, id: fmt.Sprintf("t%06x", rand.Uint32()&0xffffff),
		subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + rand.IntN(64)), byte(rand.IntN(64) * 4), 0}), 22),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := os.Chmod(dir, 0o711); err != nil { // pods with a user namespace pass through it
		return n, err
	}
	program, err := standin(ctx, dir)
	if err != nil {
		return n, err
	}
	all, err := catalog(program)
	if err != nil {
		return n, err
	}
	if n.registries, err = startRegistries(ctx, filepath.Join(dir, "pki"), all); err != nil {
		return n, err
	}
	return n, n.start(wherry)
}

func (n *node) data() string     { return filepath.Join(n.dir, "d") }
func (n *node) run() string      { return filepath.Join(n.dir, "r") }
func (n *node) socket() string   { return filepath.Join(n.dir, "cri.sock") }
func (n *node) endpoint() string { return "unix://" + n.socket() }

// start runs the process until it says that it is ready, as it would to systemd.
func (n *node) start(wherry string) error {
	notify := filepath.Join(n.dir, "notify")
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = ready.Close() }()
	logFile, err := os.Create(filepath.Join(n.dir, "cri.log"))
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	cmd := exec.Command(wherry, "cri", "--listen", n.endpoint(), "--data-dir", n.data(), "--run-dir", n.run(), //nolint:noctx // ended by close
		"--instance-id", n.id, "--pod-cidr", n.subnet.String(), "--cni-conf-dir", filepath.Join(n.dir, "net.d"))
	cmd.Env = append(withoutProxies(os.Environ()), "HTTPS_PROXY="+n.Proxy, "SSL_CERT_FILE="+n.CA, "NOTIFY_SOCKET="+notify)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.cmd, n.ended = cmd, make(chan struct{})
	go func() {
		defer close(n.ended)
		n.exit = cmd.Wait()
		_ = ready.Close() // nobody will write to it any more
	}()
	buf := make([]byte, 256)
	if _, err := ready.Read(buf); err != nil {
		<-n.ended
		doc, rerr := os.ReadFile(logFile.Name())
		return errors.Join(fmt.Errorf("wherry cri did not start: %w: %s", n.exit, doc), rerr)
	}
	return nil
}

// close stops the process, removes what it made and ends the registries.
func (n *node) close(ctx context.Context) error {
	var errs []error
	if n.cmd != nil {
		errs = append(errs, n.cmd.Process.Signal(unix.SIGTERM))
		<-n.ended
		errs = append(errs, n.exit, n.teardown(ctx))
	}
	if n.registries != nil {
		errs = append(errs, n.Close())
	}
	return errors.Join(append(errs, mount.RemoveTree(n.dir))...)
}

func (n *node) teardown(ctx context.Context) error {
	images, err := image.Open(filepath.Join(n.data(), "store"))
	if err != nil {
		return err
	}
	s, err := cri.New(ctx, cri.Config{
		Root: filepath.Join(n.data(), "cri"), State: filepath.Join(n.run(), "cri"), Socket: n.socket(),
		InstanceID: n.id, PodCIDR: n.subnet, CNIConfDir: filepath.Join(n.dir, "net.d"),
	}, images)
	if err != nil {
		return errors.Join(err, images.Close())
	}
	return errors.Join(s.Teardown(ctx), images.Close())
}

// withoutProxies drops what would lead requests out of the machine.
func withoutProxies(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(strings.ToLower(v), "=")
		return strings.HasSuffix(name, "_proxy") || name == "ssl_cert_file"
	})
}
