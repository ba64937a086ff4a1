package history

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// envMember makes this program a member of etcd: NAME,DIR,CLIENT URL,PEER URL,CLUSTER.
const envMember = "WHERRY_HISTORY_MEMBER"

func TestMain(m *testing.M) {
	if is := os.Getenv(envMember); is != "" {
		if err := member(strings.SplitN(is, ",", 5)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	klog.SetLogger(logr.Discard()) // what the candidates say of servers that are gone
	os.Exit(m.Run())
}

func member(args []string) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster, cfg.LogLevel = args[0], args[1], args[4], "error"
	client, err := url.Parse(args[2])
	if err != nil {
		return err
	}
	peer, err := url.Parse(args[3])
	if err != nil {
		return err
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	return <-e.Err()
}

// process is a program that is killed and started again.
type process struct {
	t     *testing.T
	name  string
	log   string
	start func(context.Context) *exec.Cmd

	mu  sync.Mutex
	cmd *exec.Cmd
}

func (p *process) run() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	c := p.start(p.t.Context())
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := errors.Join(c.Start(), log.Close()); err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.cmd = c
	p.mu.Unlock()
}

// kill ends the program without a warning.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
	_ = p.cmd.Wait() // killed
	p.cmd = nil
}

// cluster is two API servers on three members of etcd.
type cluster struct {
	t         *testing.T
	etcd      []string // URLs for clients
	servers   []*rest.Config
	processes []*process // members first
}

const members = 3

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	return port
}

func wherry(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/wherry")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v; `make build` makes it", err)
	}
	return path
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c, dir := &cluster{t: t}, t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all, peers []string
	for i := range members {
		c.etcd = append(c.etcd, "http://127.0.0.1:"+freePort(t))
		peers = append(peers, "http://127.0.0.1:"+freePort(t))
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range members {
		is := strings.Join([]string{fmt.Sprint("m", i), filepath.Join(dir, fmt.Sprint("m", i)), c.etcd[i], peers[i], strings.Join(all, ",")}, ",")
		c.add(fmt.Sprint("member ", i), filepath.Join(dir, fmt.Sprintf("m%d.log", i)), func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(os.Environ(), envMember+"="+is)
			return cmd
		})
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("t0ken,boss,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := wherry(t)
	for i := range 2 {
		port, data := freePort(t), filepath.Join(dir, fmt.Sprint("s", i))
		c.servers = append(c.servers, &rest.Config{
			Host: "https://127.0.0.1:" + port, BearerToken: "t0ken", QPS: -1, Timeout: 10 * time.Second, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		})
		c.add(fmt.Sprint("server ", i), data+".log", func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, binary, "apiserver", "--data-dir", data, "--bind-address=127.0.0.1", "--secure-port="+port,
				"--etcd-servers="+strings.Join(c.etcd, ","), "--etcd-compaction-interval=0", "--token-auth-file="+tokens)
		})
	}
	for _, p := range c.processes {
		p.run()
	}
	for i := range c.servers {
		c.awaitServer(i)
	}
	return c
}

func (c *cluster) add(name, log string, start func(context.Context) *exec.Cmd) {
	p := &process{t: c.t, name: name, log: log, start: start}
	c.processes = append(c.processes, p)
	c.t.Cleanup(func() {
		p.kill()
		if !c.t.Failed() {
			return
		}
		if text, err := os.ReadFile(log); err == nil {
			c.t.Logf("%s ends with:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
}

func (c *cluster) client(server int) *kubernetes.Clientset {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(c.servers[server])
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// awaitServer waits until a server answers.
func (c *cluster) awaitServer(i int) {
	c.t.Helper()
	client, err := rest.HTTPClientFor(c.servers[i])
	if err != nil {
		c.t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.servers[i].Host+"/readyz", nil)
		if err != nil {
			c.t.Fatal(err)
		}
		res, err := client.Do(req)
		if err == nil {
			if err = res.Body.Close(); err == nil && res.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("server %d is not ready: %v", i, err)
		}
	}
}
