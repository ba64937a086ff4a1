package main

import (
	"net"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"wherry.dev/test/panics"
	"wherry.dev/test/registries"
)

// TestMain plays `wherry hollow` where a test has started this program as that.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "hollow" {
		os.Exit(playHollow(os.Getenv("PLAY"), os.Getenv("NOTIFY_SOCKET")))
	}
	os.Exit(panics.Watch(m).Run())
}

// playHollow says that it is ready, unless it is to end at once.
func playHollow(play, socket string) int {
	if play == "ends" {
		_, _ = os.Stderr.WriteString("no such cluster\n")
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	c, err := net.Dial("unixgram", socket) //nolint:noctx // a program of its own
	if err != nil {
		return 2
	}
	if _, err := c.Write([]byte("READY=1")); err != nil {
		return 3
	}
	<-stop
	return 0
}

// startPlayed starts hollow nodes that are played so.
func startPlayed(t *testing.T, play string) (*node, error) {
	t.Setenv("PLAY", play)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{wherry: self, dir: t.TempDir(), registries: &registries.Registries{}}
	return n, n.withHollow(t.Context(), 3)
}

func TestHollowNodesThatDoNotStartSayWhy(t *testing.T) {
	_, err := startPlayed(t, "ends")
	if err == nil || !strings.Contains(err.Error(), "no such cluster") {
		t.Errorf("%v", err)
	}
}

func TestHollowNodesThatEndWhileSpecsRunAreNoticed(t *testing.T) {
	n, err := startPlayed(t, "runs")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.fleet.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-n.fleet.end
	if err := n.fleet.close(); err == nil || !strings.Contains(err.Error(), "while the specs ran") {
		t.Errorf("%v", err)
	}
}

func TestHollowNodesEndWithTheRun(t *testing.T) {
	n, err := startPlayed(t, "runs")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.fleet.close(); err != nil {
		t.Errorf("%v", err)
	}
}
