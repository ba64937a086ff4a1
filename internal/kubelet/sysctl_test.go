package kubelet

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// asked remembers the configuration of the last sandbox.
type asked struct {
	internalapi.RuntimeService
	sandbox *runtimeapi.PodSandboxConfig
}

func (a *asked) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	a.sandbox = cfg
	return a.RuntimeService.RunPodSandbox(ctx, cfg, handler)
}

// TestNodesSysctlsReachItsPods, including those that a pod itself must not set.
func TestNodesSysctlsReachItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.FeatureGates = map[string]bool{"DefaultPodSysctls": true}
		w.cfg.DefaultPodSysctls = map[string]string{"net.core.somaxconn": "1024", "net.ipv4.tcp_syncookies": "0"}
		rt := &asked{}
		w.prepare = func(k *Kubelet) {
			rt.RuntimeService = k.deps.Runtime
			k.deps.Runtime = rt
		}
		w.start()
		pod := testPod("a")
		pod.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.tcp_syncookies", Value: "1"}}}
		w.create(pod)
		w.until("it runs", func() bool { return w.get("a").Status.Phase == v1.PodRunning })
		want := map[string]string{"net.core.somaxconn": "1024", "net.ipv4.tcp_syncookies": "1"}
		if got := rt.sandbox.GetLinux().GetSysctls(); !maps.Equal(got, want) {
			t.Errorf("%v", got)
		}
		w.stop()
	})
}
