package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/test/cricontract"
)

// TestContract checks what the kubelet relies on. The fake runtime of its tests passes it, too.
func TestContract(t *testing.T) {
	n := newNode(t)
	for _, check := range cricontract.Checks {
		t.Run(check.Name, func(t *testing.T) {
			check.Run(t, cricontract.Target{
				Runtime: n.run, Images: n.img, Image: "busybox:latest",
				Pod:       func() *runtimeapi.PodSandboxConfig { return n.podConfig() },
				Container: func(cfg *runtimeapi.ContainerConfig) { cfg.Linux = containerConfig(cfg.Metadata.Name).Linux },
			})
		})
	}
}
