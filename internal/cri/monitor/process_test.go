package monitor

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// The error said only "Waiting for a process".
func TestFailedWaitNamesTheProcess(t *testing.T) {
	start, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(os.Getpid(), start)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	if p.WaitUntil(klog.NewContext(t.Context(), log.WithValues("container", "c1"))) {
		t.Error("a wait on a closed handle succeeds")
	}
	said := log.GetSink().(ktesting.Underlier).GetBuffer().String()
	if !strings.Contains(said, "pid="+strconv.Itoa(os.Getpid())) || !strings.Contains(said, `container="c1"`) {
		t.Errorf("logged: %s", said)
	}
}
