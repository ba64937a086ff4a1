package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// badPlugin makes `first` run a line of shell at each listed command.
func badPlugin(t *testing.T, cfg PluginsConfig, at map[string]string) {
	t.Helper()
	script := "#!/bin/sh\ncase $CNI_COMMAND in\n"
	for command, line := range at {
		script += command + ") " + line + ";;\n"
	}
	script += "esac\n" + strings.TrimPrefix(fakePlugin, "#!/bin/sh\n")
	path := filepath.Join(cfg.BinDirs[0], "first")
	if err := os.WriteFile(path+".new", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestPluginFaults: the error names the plugin, the network and what happened.
func TestPluginFaults(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want []string
	}{
		"prints rubbish":        {"echo 'Hello, world'; exit 0", []string{"invalid JSON", `"Hello, world"`}},
		"prints nothing":        {"exit 0", nil},
		"prints another JSON":   {`echo '["a"]'; exit 0`, nil},
		"null":                  {`echo null; exit 0`, nil},
		"fails with rubbish":    {"echo oops; echo trace >&2; exit 3", []string{"exit status 3", "oops", "trace"}},
		"fails without output":  {"exit 4", []string{"exit status 4", "without output"}},
		"dies by a signal":      {"kill -SEGV $$", []string{"killed by signal 11 (SIGSEGV)"}},
		"fails as the spec has": {`echo '{"code":11,"msg":"try again","details":"later"}'; exit 1`, []string{"try again; later"}},
		"gives no address":      {`echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"x"}]}'; exit 0`, nil},
		"gives a wrong index":   {`echo '{"cniVersion":"1.0.0","interfaces":[null],"ips":[{"interface":0,"address":"10.0.0.1/8"}]}'; exit 0`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, calls := fakeNetwork(t)
			cfg.Timeout = time.Minute
			doc := `{"cniVersion":"1.0.0","name":"testnet","plugins":[{"type":"first"}]}`
			if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-test.conflist"), []byte(doc), 0o600); err != nil {
				t.Fatal(err)
			}
			badPlugin(t, cfg, map[string]string{"ADD": c.line})
			n := openPlugins(t, cfg)
			p := newPod(t)
			_, err := n.Setup(t.Context(), p)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(c.want, "CNI network testnet", p.ID) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
			if len(c.want) > 0 && !strings.Contains(err.Error(), "CNI plugin first") {
				t.Errorf("%v does not name the plugin", err)
			}
			var said *types.Error
			if name == "fails as the spec has" && (!errors.As(err, &said) || said.Code != types.ErrTryAgainLater) {
				t.Errorf("the code is lost: %v", err)
			}
			if got := calls(); len(got) != 1 || !strings.HasPrefix(got[0], "DEL first") {
				t.Errorf("DEL did not follow: %q", got)
			}
		})
	}
}

func TestHangingPluginIsKilledWithItsChildren(t *testing.T) {
	cfg, _ := fakeNetwork(t)
	dir := t.TempDir()
	pids, hangs := filepath.Join(dir, "pids"), filepath.Join(dir, "hangs")
	if err := unix.Mkfifo(hangs, 0o600); err != nil {
		t.Fatal(err)
	}
	badPlugin(t, cfg, map[string]string{"ADD": "sleep 1000 & echo $$ $! > " + pids + "; : > " + hangs + "; wait"})
	n := openPlugins(t, cfg)
	expired := &expiredContext{t.Context(), make(chan struct{})}
	go func() {
		defer close(expired.done)
		if f, err := os.Open(hangs); err == nil { // once the plugin has it open, too
			_ = f.Close()
		}
	}()
	_, err := n.Setup(expired, newPod(t))
	var hung *HungError
	if !errors.As(err, &hung) || hung.Plugin != "first" || hung.Command != "ADD" || !strings.Contains(err.Error(), "CNI network testnet") {
		t.Errorf("got %v", err)
	}
	doc, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for s := range strings.FieldsSeq(string(doc)) {
		pid, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, pid)
	}
	badPlugin(t, cfg, nil) // the plugin works again: the retry starts from the beginning
	n = openPlugins(t, cfg)
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := n.Teardown(t.Context(), p, "testnet"); err != nil {
		t.Fatal(err)
	}
}

// expiredContext runs out of time when the test says so.
type expiredContext struct {
	context.Context //nolint:containedctx // a context itself
	done            chan struct{}
}

func (c *expiredContext) Done() <-chan struct{} { return c.done }
func (c *expiredContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// awaitEnd waits until a killed process is gone, which may take a moment.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60000)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60000)
	}
	if n == 0 || err != nil {
		t.Errorf("process %d still runs, %v", pid, err)
	}
}

// TestHangingDelDoesNotBlockRemoval: the sandbox is removed, and GC runs the plugins once they
// respond again.
func TestHangingDelDoesNotBlockRemoval(t *testing.T) {
	cfg, calls := fakeNetwork(t)
	n := openPlugins(t, cfg)
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	n.cfg.Plugins.Timeout = 300 * time.Millisecond
	badPlugin(t, cfg, map[string]string{"DEL": "exec sleep 1000"})
	for range 2 { // the second time at once
		if err := n.Teardown(t.Context(), p, "testnet"); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := n.gc(t.Context()); err == nil || again != gcRetry {
		t.Errorf("GC while it still hangs: %v, %v", again, err)
	}
	badPlugin(t, cfg, nil)
	cfg.Timeout = time.Minute
	n = openPlugins(t, cfg, p.ID) // after a restart
	calls()
	if again, err := n.gc(t.Context()); err != nil || again != 0 {
		t.Errorf("GC: %v, %v", again, err)
	}
	if got := calls(); len(got) != 2 || !strings.HasPrefix(got[1], "DEL first") || !strings.Contains(got[1], p.ID) {
		t.Errorf("calls %q", got)
	}
	if ids, err := cfg.attachedIDs(); err != nil || len(ids) != 0 {
		t.Errorf("records %v, %v", ids, err)
	}
}

// TestLostSandboxesAreCollected: their folders are gone, so nobody else tears them down.
func TestLostSandboxesAreCollected(t *testing.T) {
	cfg, calls := fakeNetwork(t)
	n := openPlugins(t, cfg)
	kept, lost := newPod(t), newPod(t)
	for _, p := range []Pod{kept, lost} {
		if _, err := n.Setup(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	calls()
	n = openPlugins(t, cfg, kept.ID)
	if _, err := n.gc(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := calls(); len(got) != 2 || !strings.Contains(got[0], lost.ID) {
		t.Errorf("calls %q", got)
	}
	if ids, err := cfg.attachedIDs(); err != nil || len(ids) != 1 || ids[0] != kept.ID {
		t.Errorf("records %v, %v", ids, err)
	}
}

func TestPluginThatLeavesAChildBehind(t *testing.T) {
	cfg, _ := fakeNetwork(t)
	pid := filepath.Join(t.TempDir(), "pid")
	badPlugin(t, cfg, map[string]string{"ADD": "sleep 1000 2>&1 & echo $! > " + pid})
	n := openPlugins(t, cfg)
	t.Cleanup(func() {
		doc, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := strconv.Atoi(strings.TrimSpace(string(doc))); err == nil {
			_ = unix.Kill(p, unix.SIGKILL)
		}
	})
	if _, err := n.Setup(t.Context(), newPod(t)); err != nil {
		t.Error(err)
	}
}
