package disk

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// A pod's init used to fail to start ("text file busy") if another child was being forked while
// the init was written.
func TestProgramRunsThoughOthersFork(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	for range 2 {
		forks.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("/bin/true").Run(); err != nil { //nolint:noctx // exits at once
					t.Error(err)
				}
			}
		})
	}
	dir := t.TempDir()
	for i := range 200 {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := WriteProgram(path, program); err != nil {
			t.Fatal(err)
		}
		if err := exec.CommandContext(t.Context(), path).Run(); err != nil {
			t.Errorf("program %d: %v", i, err)
			break
		}
	}
	cancel()
	forks.Wait()
}
