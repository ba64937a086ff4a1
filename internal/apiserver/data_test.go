package apiserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/test/panics"
)

// childDir, when set, makes this program a server on that folder, which writes until it is killed.
const childDir = "WHERRY_TEST_APISERVER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := writeForEver(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(panics.Watch(m).Run())
}

// writeForEver creates config maps and names each one once it has been acknowledged.
func writeForEver(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = dir, 0, net.IPv4(127, 0, 0, 1)
	s, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		return errors.Join(errors.New("ended early"), err)
	}
	c, err := kubernetes.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}, Data: map[string]string{"k": strings.Repeat("v", i%5000)}}
		m, err := c.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		fmt.Println(m.Name)
	}
}

func TestNothingAcknowledgedIsLostByKill(t *testing.T) {
	dir := t.TempDir()
	var names []string
	for round := range 3 {
		names = append(names, killedAfter(t, dir, 150+100*round)...)
	}
	s := startIn(t, dir)
	list, err := admin(t, s).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, m := range list.Items {
		have[m.Name] = true
	}
	for _, name := range names {
		if !have[name] {
			t.Errorf("%s had been acknowledged, and is gone", name)
		}
	}
}

// killedAfter runs the writing child, and kills it when it has named n objects.
func killedAfter(t *testing.T, dir string, n int) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var names []string
	lines := bufio.NewScanner(out)
	for len(names) < n && lines.Scan() {
		names = append(names, lines.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	for lines.Scan() { // acknowledged before the signal arrived
		names = append(names, lines.Text())
	}
	if err := cmd.Wait(); len(names) < n {
		t.Fatalf("the server ended by itself: %v\n%s", err, log.String())
	}
	return names
}

func TestCorruptDataIsOneClearError(t *testing.T) {
	dir := t.TempDir()
	_, stop := run(t, dir)
	stop()
	garbage := func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("garbage ", 4096)), 0o600) }
	for name, damage := range map[string]struct {
		suffix string
		spoil  func(path string) error
	}{
		"garbage for a database":  {"db", garbage},
		"garbage for a log":       {".wal", garbage},
		"a database cut short":    {"db", func(path string) error { return os.Truncate(path, 2*4096) }},
		"a log without beginning": {".wal", os.Remove},
	} {
		suffix, spoil := damage.suffix, damage.spoil
		t.Run(name, func(t *testing.T) {
			spoilt := t.TempDir()
			if err := os.CopyFS(spoilt, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			found := 0
			err := filepath.WalkDir(spoilt, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() || !strings.HasSuffix(path, suffix) {
					return err
				}
				found++
				return spoil(path)
			})
			if err != nil || found == 0 {
				t.Fatalf("%d files spoilt, %v", found, err)
			}
			err = newFails(t, func(c *Config) { c.DataDir = spoilt })
			if !strings.Contains(err.Error(), "etcd data in "+filepath.Join(spoilt, "etcd")+" cannot be opened: ") || !strings.Contains(err.Error(), "restore the folder from a backup") {
				t.Errorf("error: %v", err)
			}
		})
	}
}

// newFails returns the error of New.
func newFails(t *testing.T, change func(*Config)) error {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	change(&cfg)
	s, err := New(t.Context(), cfg)
	if err == nil {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		t.Fatalf("New succeeded; Run: %v", s.Run(ctx))
	}
	return err
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	dir := t.TempDir()
	s := startIn(t, dir)
	port := s.Addr().Port
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"port in use": {
			func(c *Config) { c.SecurePort = port },
			fmt.Sprintf("port %d on 127.0.0.1 is in use by another program; choose another one with --secure-port", port),
		},
		"foreign address": {func(c *Config) { c.BindAddress = net.IPv4(192, 0, 2, 1) }, "192.0.2.1 is not an address of this machine; choose another one with --bind-address"},
		"data in use":     {func(c *Config) { c.DataDir = dir }, "another process is using it"},
		"no folder":       {func(c *Config) { c.DataDir = file }, file},
		"etcd is away":    {func(c *Config) { c.EtcdServers = []string{"ftp:"} }, "--etcd-servers"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := newFails(t, tc.change); !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q, want %q in it", err, tc.want)
			}
		})
	}
	// None of that has disturbed the running server.
	if _, err := admin(t, s).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestTwoServersSideBySide(t *testing.T) {
	a, b := start(t), start(t)
	if _, err := admin(t, a).CoreV1().Pods("default").Create(t.Context(), testPod("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := admin(t, b).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("pods of the other server: %v, %v", list.Items, err)
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	first, stop := run(t, dir)
	makeAccount(t, first)
	token := tokenOf(t, first)
	if _, err := admin(t, first).CoreV1().Pods("default").Create(t.Context(), testPod("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()
	second := startIn(t, dir)
	if _, err := admin(t, second).CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	me := clientFor(t, withToken(second, token)).Discovery().RESTClient().Get().AbsPath("/api").Do(t.Context())
	if err := me.Error(); err != nil {
		t.Errorf("a token from before the restart: %v", err)
	}
}

// A start that was cancelled while etcd opened its data used to tell people to remove the data.
func TestStartThatIsGivenUpCallsNoDataDamaged(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	s, err := New(ctx, cfg)
	if err == nil {
		err = s.Run(ctx)
	}
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "start empty") {
		t.Errorf("got %v", err)
	}
}
