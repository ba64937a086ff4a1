package main

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// kind is a sort of API server: how it is started in a folder, so that it finds there what the last one left.
type kind struct {
	name  string
	start func(ctx context.Context, dir string) (*server, error)
}

// server is an API server that runs, and all that it consists of.
type server struct {
	cfg       *rest.Config // protobuf
	processes []*exec.Cmd
}

const token = "t0ken"

func startWherry(binary string) func(context.Context, string) (*server, error) {
	return func(ctx context.Context, dir string) (*server, error) {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		api, err := command(ctx, dir, binary, append([]string{"apiserver", "--data-dir", filepath.Join(dir, "data")}, common(dir, port)...)...)
		if err != nil {
			return nil, err
		}
		return ready(ctx, port, api)
	}
}

func startUpstream(binary, etcd string) func(context.Context, string) (*server, error) {
	return func(ctx context.Context, dir string) (*server, error) {
		var ports [3]string
		for i := range ports {
			var err error
			if ports[i], err = freePort(); err != nil {
				return nil, err
			}
		}
		clients, peers := "http://127.0.0.1:"+ports[1], "http://127.0.0.1:"+ports[2]
		store, err := command(ctx, dir, etcd, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", clients, "--advertise-client-urls", clients,
			"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers, "--log-level", "error")
		if err != nil {
			return nil, err
		}
		args := append(common(dir, ports[0]), "--etcd-servers", clients, "--cert-dir", filepath.Join(dir, "pki"), "--authorization-mode", "RBAC",
			"--service-account-key-file", filepath.Join(dir, "sa.key"), "--service-account-issuer", "https://kubernetes.default.svc")
		api, err := command(ctx, dir, binary, args...)
		if err != nil {
			return nil, errors.Join(err, end(store))
		}
		return ready(ctx, ports[0], api, store)
	}
}

// common are the flags that both have.
func common(dir, port string) []string {
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + port, "--token-auth-file=" + filepath.Join(dir, "tokens.csv"),
		"--service-account-signing-key-file=" + filepath.Join(dir, "sa.key"), "--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.0.0.0/16", "--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000",
	}
}

// prepare writes the files that common names.
func prepare(dir string) error {
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

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// command starts a program. What it prints goes to a file that is named like it.
func command(ctx context.Context, dir, binary string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(dir, filepath.Base(binary)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, binary, args...)
	c.Dir, c.Stdout, c.Stderr = dir, log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c, errors.Join(c.Start(), log.Close())
}

// ready waits until a server answers.
func ready(ctx context.Context, port string, processes ...*exec.Cmd) (*server, error) {
	s := &server{processes: processes, cfg: &rest.Config{
		Host: "https://127.0.0.1:" + port, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf},
	}}
	client, err := kubernetes.NewForConfig(s.cfg)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return s, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("not ready: %w", err), s.stop())
		}
	}
}

// stop ends the server and what it needs, and waits.
func (s *server) stop() error {
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, end(p))
	}
	return errors.Join(errs...)
}

func end(c *exec.Cmd) error {
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

// memory returns the resident memory of all processes, in MiB.
func (s *server) memory() (float64, error) {
	sum := 0.0
	for _, p := range s.processes {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := bytes.Cut(status, []byte("VmRSS:"))
		kib, err := strconv.ParseFloat(strings.Fields(string(after))[0], 64)
		if err != nil {
			return 0, err
		}
		sum += kib / 1024
	}
	return sum, nil
}

// cpu returns the CPU time that all processes have used.
func (s *server) cpu() (time.Duration, error) {
	sum := time.Duration(0)
	for _, p := range s.processes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := bytes.Cut(stat, []byte(") "))
		f := strings.Fields(string(after))
		for _, ticks := range f[11:13] { // utime and stime, in hundredths of a second
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum, nil
}
