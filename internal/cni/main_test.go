package cni

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"wherry.dev/internal/cni/plugin"
	"wherry.dev/test/kills"
	"wherry.dev/test/leaks"
)

// child is what the test program does when it is started in order to be killed: one call on a
// network.
type child struct {
	Bridge   *BridgeConfig
	Plugins  PluginsConfig
	Live     map[string]Pod
	Pod      Pod
	Teardown string // the network to leave; "" joins one
}

const childEnv = "WHERRY_TEST_CNI_CHILD"

// TestMain also makes the test program act as the plugins: links with their names lead to it.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	if name := filepath.Base(os.Args[0]); plugin.Known(name) {
		os.Exit(plugin.Main(name))
	}
	if doc := os.Getenv(childEnv); doc != "" {
		os.Exit(runChild(doc))
	}
	// Package net probes the machine's abilities once, in the namespace it is in at that time.
	if l, err := net.Listen("tcp", "localhost:0"); err == nil {
		_ = l.Close()
	}
	os.Exit(leaks.Watch(m).Run())
}

func runChild(doc string) int {
	var c child
	if err := json.Unmarshal([]byte(doc), &c); err != nil {
		panic(err)
	}
	ctx := context.Background() // this is a main function
	cfg := Config{Plugins: c.Plugins, PluginsOnly: c.Bridge == nil, Bridge: BridgeConfig{Dir: filepath.Join(c.Plugins.CacheDir, "network")}}
	if c.Bridge != nil {
		cfg.Bridge = *c.Bridge
	}
	n, err := Open(ctx, cfg, c.Live, map[string]bool{c.Pod.ID: true})
	if err != nil {
		panic(err)
	}
	if c.Teardown != "" {
		err = n.Teardown(ctx, c.Pod, c.Teardown)
	} else {
		_, err = n.Setup(ctx, c.Pod)
	}
	if err != nil {
		panic(err)
	}
	return 0
}

// killAt runs the call in a process that is killed at the step.
func (c child) killAt(t *testing.T, step string) {
	t.Helper()
	kills.At(t, step, childEnv, c)
}
