package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// forgetting returns the cluster with the run dir forgotten, so that commands run without it.
func (c *cluster) forgetting() *cluster {
	other := *c
	other.run = ""
	return &other
}

// A down that was not told the run dir of the start used to look into another one, say that it had
// stopped the pods, and remove the data under their running containers.
func TestDownFindsTheRunDir(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	id := c.instanceID()
	c.create(busybox("a"))
	c.await("a", "ready", ready)
	wrong := *c
	wrong.run = t.TempDir()
	want := "runs with --run-dir " + c.run
	c.failsWith(want, wrong.command(t.Context(), "down", "--purge"))
	pid := c.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	c.failsWith(want, wrong.upCommand())
	c.up()
	if got := c.await("a", "ready", ready); got.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod was harmed: %s", describe(got))
	}
	c.started = false
	c.forgetting().must("down", "--purge")
	c.left(id)
}

// Folders that held other things used to become an instance's with everything in them, and were
// removed by its purge.
func TestFoldersOfOthersAreLeftAlone(t *testing.T) {
	needsOwnRuntime(t)
	others := t.TempDir()
	precious := filepath.Join(others, "log", "precious")
	for _, path := range []string{precious, filepath.Join(others, "home", "me")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t)
	c.failsWith(others+" is not a data dir of Wherry: it holds home, and no record of an instance; give --data-dir a folder of its own", c.upCommand("--data-dir", others))
	c.failsWith(others+" is not a data dir of Wherry", c.command(t.Context(), "down", "--purge", "--data-dir", others))
	c.failsWith(others+" is not a run dir of Wherry: it holds home, log; give --run-dir a folder of its own", c.upCommand("--run-dir", others))
	c.failsWith("lies in --run-dir", c.upCommand("--data-dir", filepath.Join(others, "d"), "--run-dir", others))
	if got, err := os.ReadFile(precious); string(got) != "mine" {
		t.Fatalf("%q, %v", got, err)
	}
	if info, err := os.Stat(others); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}

	c.up()
	mine := filepath.Join(c.data, "notes")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.started = false
	c.must("down", "--purge")
	left, err := os.ReadDir(c.data)
	if err != nil || len(left) != 1 || left[0].Name() != "notes" {
		t.Errorf("a purge leaves %v, %v", left, err)
	}
}
