package dra

import (
	"encoding/json"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"wherry.dev/internal/kubelet/plugins"
	"wherry.dev/test/kills"
)

// childEnv has what the process is to do that a test kills.
const childEnv = "WHERRY_TEST_DRA_CHILD"

type child struct {
	Dir, Socket string
	Unprepare   bool
}

// TestKilledBetweenTwoSteps runs steps in a process of its own, which dies in the middle; another kubelet goes on, or
// gives everything back.
func TestKilledBetweenTwoSteps(t *testing.T) {
	its := allocated("x", []string{"p"}, "gpu.example.com")
	p := podWith("p", "x")
	if doc := os.Getenv(childEnv); doc != "" {
		var c child
		if err := json.Unmarshal([]byte(doc), &c); err != nil {
			t.Fatal(err)
		}
		m := newManager(t, c.Dir, its)
		if err := m.Register(t.Context(), plugins.Plugin{Name: "gpu.example.com", Endpoint: c.Socket, Versions: []string{drav1.DRAPluginService}}); err != nil {
			t.Fatal(err)
		}
		if c.Unprepare {
			unprepare(t, m, p)
		} else {
			prepare(t, m, p)
		}
		return
	}
	for _, step := range []string{"dra-noted", "dra-prepared", "dra-written", "dra-unprepared"} {
		for _, goesOn := range []bool{true, false} {
			t.Run(step, func(t *testing.T) {
				m := newManager(t, t.TempDir(), its)
				d := startDriver(t, m, "gpu.example.com")
				ending := step == "dra-unprepared"
				if ending {
					prepare(t, m, p)
				}
				kills.At(t, step, childEnv, child{m.dir, d.socket, ending}, "-test.run=^TestKilledBetweenTwoSteps$")
				m = again(t, m, d)
				if !m.Left(p) {
					t.Fatal("nothing is known of it")
				}
				if goesOn && !ending {
					prepare(t, m, p)
					if ids, err := m.Container(p, using(v1.ResourceClaim{Name: "for-x"})); err != nil || len(ids) != 3 {
						t.Errorf("the container gets %v, %v", ids, err)
					}
				}
				unprepare(t, m, p)
				wantString(t, "prepared", d.has(), "")
				if left, err := m.all(); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			})
		}
	}
}
