package image_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

// childEnv makes the test binary do one thing with a store and be killed.
const childEnv = "WHERRY_TEST_IMAGE_CHILD"

type job struct{ Dir, Pull, Import, Remove string }

func runChild() (code int, ok bool) {
	doc := os.Getenv(childEnv)
	if doc == "" {
		return 0, false
	}
	if err := child(context.Background(), doc); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func child(ctx context.Context, doc string) error {
	var j job
	if err := json.Unmarshal([]byte(doc), &j); err != nil {
		return err
	}
	s, err := image.OpenWith(j.Dir, image.Config{CertsDirs: []string{}})
	if err != nil {
		return err
	}
	switch {
	case j.Pull != "":
		_, err = s.Pull(ctx, j.Pull, image.PullOptions{})
	case j.Import != "":
		_, err = s.Import(ctx, j.Import)
	default:
		err = s.Remove(ctx, j.Remove)
	}
	return err
}

// killedAt runs the job in a child that is killed at the step.
func killedAt(t *testing.T, step string, j job) {
	t.Helper()
	doc, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(doc), "WHERRY_TEST_FAILPOINT="+step)
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("%s was not reached: %v\n%s", step, err, out)
	}
}

func TestKillBetweenAnyTwoStepsOfAPull(t *testing.T) {
	srv := plain(t)
	ref := srv.Push(t, "demo:1", twoLayers(t))
	other := srv.Push(t, "other:1", twoMore(t))
	for _, step := range []string{
		"pull-resolved", "pull-applied", "pull-unpacked", "pull-adopted", "pull-synced",
		"pull-config", "pull-recorded", "pull-named",
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first := open(t, dir)
			witness := pull(t, first, other)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			killedAt(t, step, job{Dir: dir, Pull: ref})
			s := open(t, dir)
			checkWhole(t, s)
			tree(t, overlay(t, s, witness.ID))
			img := pull(t, s, ref)
			if got := tree(t, overlay(t, s, img.ID)); len(got) != 2 {
				t.Errorf("after the repeated pull: %v", got)
			}
			checkWhole(t, s)
			if _, err := s.Prune(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkEmpty(t, s)
		})
	}
}

func TestKillBetweenAnyTwoStepsOfAnImport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "i.tar")
	if err := images.Save(file, twoLayers(t), "demo:1"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"pull-applied", "pull-adopted", "pull-config", "pull-recorded"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			killedAt(t, step, job{Dir: dir, Import: file})
			s := open(t, dir)
			checkWhole(t, s)
			if _, err := s.Import(t.Context(), file); err != nil {
				t.Fatal(err)
			}
			img, ok := s.Lookup("demo:1")
			if !ok {
				t.Fatal("not there after the repeated import")
			}
			tree(t, overlay(t, s, img.ID))
		})
	}
}

func TestKillBetweenAnyTwoStepsOfARemoval(t *testing.T) {
	srv := plain(t)
	ref := srv.Push(t, "demo:1", twoLayers(t))
	for _, step := range []string{"remove-record", "remove-layer"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			first := open(t, dir)
			pull(t, first, ref)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			killedAt(t, step, job{Dir: dir, Remove: ref})
			s := open(t, dir)
			if got := s.List(); len(got) != 0 {
				t.Errorf("images left: %+v", got)
			}
			checkEmpty(t, s)
			pull(t, s, ref)
		})
	}
}
