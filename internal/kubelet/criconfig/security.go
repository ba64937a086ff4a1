package criconfig

import (
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// effective merges a container's security context over the pod's.
type effective struct {
	user, group *int64
	nonRoot     bool
	sc          v1.SecurityContext
}

func effectiveSecurity(pod *v1.Pod, c *v1.Container) effective {
	e := effective{}
	if c.SecurityContext != nil {
		e.sc = *c.SecurityContext
	}
	psc := pod.Spec.SecurityContext
	if psc == nil {
		psc = &v1.PodSecurityContext{}
	}
	e.user, e.group = e.sc.RunAsUser, e.sc.RunAsGroup
	if e.user == nil {
		e.user = psc.RunAsUser
	}
	if e.group == nil {
		e.group = psc.RunAsGroup
	}
	nonRoot := e.sc.RunAsNonRoot
	if nonRoot == nil {
		nonRoot = psc.RunAsNonRoot
	}
	e.nonRoot = nonRoot != nil && *nonRoot
	if e.sc.SELinuxOptions == nil {
		e.sc.SELinuxOptions = psc.SELinuxOptions
	}
	if e.sc.SeccompProfile == nil {
		e.sc.SeccompProfile = psc.SeccompProfile
	}
	if e.sc.AppArmorProfile == nil {
		e.sc.AppArmorProfile = psc.AppArmorProfile
	}
	return e
}

// verifyNonRoot refuses a container that must not run as root but would.
func verifyNonRoot(in ContainerInput) error {
	e := effectiveSecurity(in.Pod, in.Container)
	if !e.nonRoot {
		return nil
	}
	name, pod := in.Container.Name, pods.Format(in.Pod)
	switch {
	case e.user != nil && *e.user == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", pod, name)
	case e.user != nil:
		return nil
	case in.ImageUser != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)", in.ImageUser, pod, name)
	case in.ImageUID == nil || *in.ImageUID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", pod, name)
	}
	return nil
}

func containerSecurity(in ContainerInput) (*runtimeapi.LinuxContainerSecurityContext, error) {
	e := effectiveSecurity(in.Pod, in.Container)
	namespaces, err := Namespaces(in.Pod, in.UserNS)
	if err != nil {
		return nil, err
	}
	if in.TargetID != "" && namespaces.Pid == runtimeapi.NamespaceMode_CONTAINER {
		namespaces.Pid, namespaces.TargetId = runtimeapi.NamespaceMode_TARGET, in.TargetID
	}
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces,
		Privileged:       deref(e.sc.Privileged),
		ReadonlyRootfs:   deref(e.sc.ReadOnlyRootFilesystem),
		NoNewPrivs:       e.sc.AllowPrivilegeEscalation != nil && !*e.sc.AllowPrivilegeEscalation,
		SelinuxOptions:   selinux(e.sc.SELinuxOptions),
		Seccomp:          containerSeccomp(in, e.sc.SeccompProfile),
		Apparmor:         apparmor(e.sc.AppArmorProfile),
		Capabilities:     capabilities(e.sc.Capabilities),
	}
	sc.MaskedPaths, sc.ReadonlyPaths = procPaths(e.sc.ProcMount)
	switch {
	case e.user != nil:
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *e.user}
	case in.ImageUser != "":
		sc.RunAsUsername = in.ImageUser
	case in.ImageUID != nil:
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *in.ImageUID}
	}
	if e.group != nil {
		sc.RunAsGroup = &runtimeapi.Int64Value{Value: *e.group}
	}
	if psc := in.Pod.Spec.SecurityContext; psc != nil {
		if psc.FSGroup != nil {
			sc.SupplementalGroups = append(sc.SupplementalGroups, *psc.FSGroup)
		}
		sc.SupplementalGroups = append(sc.SupplementalGroups, psc.SupplementalGroups...)
		sc.SupplementalGroupsPolicy = groupsPolicy(psc)
	}
	return sc, nil
}

func containerSeccomp(in ContainerInput, p *v1.SeccompProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		p = &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
		if in.SeccompDefault {
			p.Type = v1.SeccompProfileTypeRuntimeDefault
		}
	}
	return seccomp(p, in.Dirs.Seccomp())
}

func apparmor(p *v1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.AppArmorProfileTypeLocalhost:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Clean(*p.LocalhostProfile)}
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, a := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(a))
	}
	for _, d := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(d))
	}
	return out
}

// procPaths returns the paths in /proc and /sys that a container cannot see, and those that it
// cannot write.
func procPaths(m *v1.ProcMountType) (masked, readonly []string) {
	if m != nil && *m == v1.UnmaskedProcMount {
		return []string{}, []string{}
	}
	return []string{
			"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
			"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
			"/sys/devices/virtual/powercap",
		}, []string{
			"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
		}
}

func deref(b *bool) bool { return b != nil && *b }

// TargetContainer returns the name of the container whose process namespace an ephemeral container
// joins.
func TargetContainer(pod *v1.Pod, name string) string {
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name && pods.FindContainer(pod, name) != nil {
			return pod.Spec.EphemeralContainers[i].TargetContainerName
		}
	}
	return ""
}
