package container

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"wherry.dev/internal/oci"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// A start used to fail if its container had exited before the start was recorded and the disk was
// full when the exit was recorded.
func TestStartOfWhatHasEndedDoesNotFail(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none")
	c := &Container{ID: "c", root: nowhere, bundle: oci.Bundle{Dir: nowhere}}
	if err := c.noteStart(t.Context(), 1); err == nil || c.status.StartedAt != 0 {
		t.Errorf("a running container without a record: %v, %+v", err, c.status)
	}
	c.status.EndedAt = 2
	if err := c.noteStart(t.Context(), 1); err != nil || c.status.StartedAt != 1 {
		t.Errorf("an ended one: %v, %+v", err, c.status)
	}
}

// A container that exited at once used to have ended a millisecond before it started: the time of
// its end is a file's modification time, for which the kernel uses a coarser clock.
func TestEndIsNotBeforeTheStart(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none")
	for name, steps := range map[string][]func(c *Container){
		"known before": {
			func(c *Container) { c.end(ending{at: time.Unix(0, 12)}) },
			func(c *Container) { _ = c.noteStart(t.Context(), 14) }, // not on disk
		},
		"known afterwards": {
			func(c *Container) { c.status.StartedAt = 14 },
			func(c *Container) { c.end(ending{at: time.Unix(0, 12)}) },
		},
		"never started": {
			func(c *Container) { c.end(ending{at: time.Unix(0, 9)}) },
			func(c *Container) { c.status.StartedAt = c.rec.CreatedAt },
		},
	} {
		c := &Container{ID: "c", root: nowhere, bundle: oci.Bundle{Dir: nowhere}}
		c.rec.CreatedAt = 10
		for _, step := range steps {
			step(c)
		}
		if c.status.EndedAt != c.status.StartedAt {
			t.Errorf("%s: started at %d, ended at %d", name, c.status.StartedAt, c.status.EndedAt)
		}
	}
}
