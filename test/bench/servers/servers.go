// Package servers starts API servers for benchmarks: Wherry's, with its embedded etcd, and upstream's, each in a
// folder of its own, with the same flags. They end with the program that started them.
package servers

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Start starts an API server in a folder, in which Prepare has been. It finds there what the last one left.
type Start func(ctx context.Context, dir string) (*Server, error)

// Server is an API server that runs, and all that it consists of.
type Server struct {
	Config    *rest.Config // of a client with all rights, in protobuf
	Etcd      string       // the address of its etcd, if that is a process of its own
	processes []Process
}

// Process is a program that runs.
type Process struct{ *exec.Cmd }

const token = "t0ken"

// Wherry starts our API server, with more flags if there are any.
func Wherry(binary string, flags ...string) Start {
	return func(ctx context.Context, dir string) (*Server, error) {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		args := slices.Concat([]string{"apiserver", "--data-dir", filepath.Join(dir, "data")}, common(dir, port), flags)
		api, err := Command(ctx, dir, binary, args...)
		if err != nil {
			return nil, err
		}
		return ready(ctx, port, api)
	}
}

// WherryOn starts our API server with an etcd beside it, as Upstream does.
func WherryOn(binary, etcd string, flags ...string) Start {
	return func(ctx context.Context, dir string) (*Server, error) {
		store, clients, err := startEtcd(ctx, dir, etcd)
		if err != nil {
			return nil, err
		}
		s, err := Wherry(binary, append(flags, "--etcd-servers", clients)...)(ctx, dir)
		if err != nil {
			return nil, errors.Join(err, store.End())
		}
		s.Etcd, s.processes = clients, append(s.processes, store)
		return s, nil
	}
}

// Upstream starts kube-apiserver, with more flags if there are any, and an etcd.
func Upstream(binary, etcd string, flags ...string) Start {
	return func(ctx context.Context, dir string) (*Server, error) {
		store, clients, err := startEtcd(ctx, dir, etcd)
		if err != nil {
			return nil, err
		}
		s, err := UpstreamAt(binary, clients, flags...)(ctx, dir)
		if err != nil {
			return nil, errors.Join(err, store.End())
		}
		s.processes = append(s.processes, store)
		return s, nil
	}
}

// UpstreamAt starts kube-apiserver on an etcd that is there.
func UpstreamAt(binary, etcd string, flags ...string) Start {
	return func(ctx context.Context, dir string) (*Server, error) {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		args := append(common(dir, port), "--etcd-servers", etcd, "--cert-dir", filepath.Join(dir, "pki"), "--authorization-mode", "RBAC",
			"--service-account-key-file", filepath.Join(dir, "sa.key"), "--service-account-issuer", "https://kubernetes.default.svc")
		api, err := Command(ctx, dir, binary, append(args, flags...)...)
		if err != nil {
			return nil, err
		}
		s, err := ready(ctx, port, api)
		if err != nil {
			return nil, err
		}
		s.Etcd = etcd
		return s, nil
	}
}

// startEtcd starts an etcd, and returns the address for its clients.
func startEtcd(ctx context.Context, dir, binary string) (Process, string, error) {
	var ports [2]string
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			return Process{}, "", err
		}
	}
	clients, peers := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	store, err := Command(ctx, dir, binary, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers, "--log-level", "error")
	return store, clients, err
}

// common are the flags that both have.
func common(dir, port string) []string {
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + port, "--token-auth-file=" + filepath.Join(dir, "tokens.csv"),
		"--service-account-signing-key-file=" + filepath.Join(dir, "sa.key"), "--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.0.0.0/16", "--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000",
	}
}

// Prepare writes the files that the servers of a folder need.
func Prepare(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(token+",bench,1,system:masters\n"), 0o600),
	)
}

// FreePort returns a port of 127.0.0.1 that nobody uses.
func FreePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// Command starts a program. What it prints goes to a file that is named like it.
func Command(ctx context.Context, dir, binary string, args ...string) (Process, error) {
	log, err := os.OpenFile(filepath.Join(dir, filepath.Base(binary)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Process{}, err
	}
	c := exec.CommandContext(ctx, binary, args...)
	c.Dir, c.Stdout, c.Stderr = dir, log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return Process{c}, errors.Join(c.Start(), log.Close())
}

// ready waits until a server answers.
func ready(ctx context.Context, port string, processes ...Process) (*Server, error) {
	s := &Server{processes: processes, Config: &rest.Config{
		Host: "https://127.0.0.1:" + port, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf},
	}}
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return s, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("not ready: %w", err), s.Stop())
		}
	}
}

// Stop ends the server and what it needs, and waits.
func (s *Server) Stop() error {
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, p.End())
	}
	return errors.Join(errs...)
}

// End ends a process, and waits.
func (c Process) End() error {
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	kill := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() })
	defer kill.Stop()
	err := c.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil // told to
	}
	return err
}

// Memory returns the resident memory of all processes, in MiB.
func (s *Server) Memory() (float64, error) {
	sum := 0.0
	for _, p := range s.processes {
		m, err := p.Memory()
		if err != nil {
			return 0, err
		}
		sum += m
	}
	return sum, nil
}

// CPU returns the CPU time that all processes have used.
func (s *Server) CPU() (time.Duration, error) {
	sum := time.Duration(0)
	for _, p := range s.processes {
		d, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// Memory returns the resident memory, in MiB.
func (c Process) Memory() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, alive := bytes.Cut(status, []byte("VmRSS:"))
	if !alive {
		return 0, fmt.Errorf("%s has ended", filepath.Base(c.Path))
	}
	kib, err := strconv.ParseFloat(strings.Fields(string(after))[0], 64)
	return kib / 1024, err
}

// CPU returns the CPU time that was used so far.
func (c Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(stat, []byte(") "))
	sum := time.Duration(0)
	for _, ticks := range strings.Fields(string(after))[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum, nil
}
