package cri

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestChooseAppArmor(t *testing.T) {
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, name string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{Apparmor: &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: name}}
	}
	old := func(s string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: s} //nolint:staticcheck // older clients use it
	}
	const localhost, unconfined = runtimeapi.SecurityProfile_Localhost, runtimeapi.SecurityProfile_Unconfined
	for name, c := range map[string]struct {
		sec       *runtimeapi.LinuxContainerSecurityContext
		supported bool
		want, err string
	}{
		"none":                {nil, true, defaultAppArmor, ""},
		"none, no support":    {nil, false, "", ""},
		"default":             {profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), true, defaultAppArmor, ""},
		"default, no support": {profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), false, "", "not supported"},
		"privileged":          {&runtimeapi.LinuxContainerSecurityContext{Privileged: true}, true, "", ""},
		"unconfined":          {profile(unconfined, ""), true, "", ""},
		"unconfined anyway":   {profile(unconfined, ""), false, "", ""},
		"own":                 {profile(localhost, "mine"), true, "mine", ""},
		"own, no support":     {profile(localhost, "mine"), false, "", "not supported"},
		"own without a name":  {profile(localhost, ""), true, "", "no name"},
		"old own":             {old("localhost/mine"), true, "mine", ""},
		"old unconfined":      {old("unconfined"), true, "", ""},
		"old default":         {old("runtime/default"), true, defaultAppArmor, ""},
	} {
		got, err := chooseAppArmor(c.sec, c.supported)
		if got != c.want || (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, c.want, c.err)
		}
	}
}

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

func TestSELinuxLabelsAreRefused(t *testing.T) {
	asks := &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "s0:c1"}}
	if err := checkSELinux(asks, true); err == nil || !strings.Contains(err.Error(), "SELinux label") {
		t.Errorf("with SELinux: %v", err)
	}
	empty := &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{}}
	if err := errors.Join(checkSELinux(asks, false), checkSELinux(empty, true), checkSELinux(nil, true)); err != nil {
		t.Errorf("nothing to refuse: %v", err)
	}
}
