package confine

import (
	"errors"
	"strings"
	"testing"

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
		"own without a name":  {profile(localhost, ""), true, "", "needs a name"},
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

func TestSELinuxLabelsAreRefused(t *testing.T) {
	asks := &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "s0:c1"}}
	if err := CheckSELinux(asks, true); err == nil || !strings.Contains(err.Error(), "SELinux label") {
		t.Errorf("with SELinux: %v", err)
	}
	empty := &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{}}
	if err := errors.Join(CheckSELinux(asks, false), CheckSELinux(empty, true), CheckSELinux(nil, true)); err != nil {
		t.Errorf("nothing to refuse: %v", err)
	}
}
