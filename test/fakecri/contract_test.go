package fakecri

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/test/cricontract"
)

// The fake runtime passes what the real one passes (internal/cri, TestContract).
func TestContract(t *testing.T) {
	for _, check := range cricontract.Checks {
		t.Run(check.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := New("busybox:latest")
				rt.Behave = behaviour
				rt.Exec = func(_ string, cmd []string) ([]byte, int, error) {
					if len(cmd) == 2 && cmd[0] == "echo" {
						return []byte(cmd[1] + "\n"), 0, nil
					}
					return nil, int(behaviour(&runtimeapi.ContainerConfig{Command: cmd}).ExitCode), nil
				}
				pods := 0
				check.Run(t, cricontract.Target{
					Runtime: Service{rt}, Images: Images{rt}, Image: "busybox:latest",
					Pod: func() *runtimeapi.PodSandboxConfig {
						pods++
						uid := fmt.Sprintf("uid-%d", pods)
						return &runtimeapi.PodSandboxConfig{
							Metadata:     &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid},
							LogDirectory: "/logs", Labels: map[string]string{"pod": uid},
						}
					},
					Container: func(*runtimeapi.ContainerConfig) {},
				})
				for _, v := range rt.Violations() {
					t.Error(v)
				}
			})
		})
	}
}

// behaviour does what a script would.
func behaviour(cfg *runtimeapi.ContainerConfig) Behaviour {
	switch cfg.Command[len(cfg.Command)-1] {
	case cricontract.Ends:
		return Behaviour{RunFor: time.Millisecond}
	case cricontract.Fails:
		return Behaviour{RunFor: time.Millisecond, ExitCode: 3}
	case cricontract.Ignores:
		return Behaviour{IgnoreTerm: true}
	default:
		return Behaviour{TermCode: 7}
	}
}
