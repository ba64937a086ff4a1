package kubelet

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
)

// TestSystemOOM is told by an event on the node; a log that cannot be read, or ends, stops nothing else.
func TestSystemOOM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, kernel := io.Pipe()
		w.prepare = func(k *Kubelet) { k.deps.KernelLog = func() (io.ReadCloser, error) { return r, nil } }
		w.start()
		defer w.stop()
		const line = "6,1,5;oom-kill:constraint=CONSTRAINT_NONE,nodemask=0,cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=hog,pid=7,uid=0\n"
		if _, err := io.WriteString(kernel, line); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.wantEvent("SystemOOM: System OOM encountered, victim process: hog, pid: 7")
		if err := kernel.CloseWithError(errors.New("the log is gone")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	})
}
