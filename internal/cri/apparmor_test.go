package cri

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAppArmorThatIsNotThere: a container that asks for a profile never runs without it.
func TestAppArmorThatIsNotThere(t *testing.T) {
	p := newNode(t).pod()
	cfg := containerConfig("c", "true")
	cfg.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "wherry-no-such-profile"}
	want := "apparmor is not supported on this machine"
	if apparmor.HostSupports() {
		want = "apparmor profile not found wherry-no-such-profile"
	}
	if _, err := p.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
