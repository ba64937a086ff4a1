package validation

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

func (p *problems) user(at path, id *int64) {
	if id != nil {
		matches(p, at, *id, utilvalidation.IsValidUserID(*id))
	}
}

func (p *problems) group(at path, id *int64) {
	if id != nil {
		matches(p, at, *id, utilvalidation.IsValidGroupID(*id))
	}
}

func (c *podContext) podSecurity(at path) {
	sc := c.spec.SecurityContext
	if sc == nil {
		return
	}
	c.group(at.Child("fsGroup"), sc.FSGroup)
	c.user(at.Child("runAsUser"), sc.RunAsUser)
	c.group(at.Child("runAsGroup"), sc.RunAsGroup)
	for i := range sc.SupplementalGroups {
		c.group(at.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])
	}
	c.sysctls(at.Child("sysctls"), sc.Sysctls)
	if sc.FSGroupChangePolicy != nil {
		oneOf(c.problems, at.Child("fsGroupChangePolicy"), *sc.FSGroupChangePolicy, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)
	}
	if sc.SupplementalGroupsPolicy != nil {
		oneOf(c.problems, at.Child("supplementalGroupsPolicy"), *sc.SupplementalGroupsPolicy, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	}
	if sc.SELinuxChangePolicy != nil {
		oneOf(c.problems, at.Child("seLinuxChangePolicy"), *sc.SELinuxChangePolicy, corev1.SELinuxChangePolicyRecursive, corev1.SELinuxChangePolicyMountOption)
	}
	c.seccomp(at.Child("seccompProfile"), sc.SeccompProfile)
	c.appArmor(at.Child("appArmorProfile"), sc.AppArmorProfile)
	c.windowsOptions(at.Child("windowsOptions"), sc.WindowsOptions)
}

func (c *podContext) securityContext(at path, sc *corev1.SecurityContext) {
	if sc == nil {
		return
	}
	c.user(at.Child("runAsUser"), sc.RunAsUser)
	c.group(at.Child("runAsGroup"), sc.RunAsGroup)
	if sc.ProcMount != nil {
		oneOf(c.problems, at.Child("procMount"), *sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if c.hostUsers() && *sc.ProcMount == corev1.UnmaskedProcMount {
			c.invalid(at.Child("procMount"), *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	c.seccomp(at.Child("seccompProfile"), sc.SeccompProfile)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if sc.Privileged != nil && *sc.Privileged {
			c.invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if sc.Capabilities != nil {
			for _, added := range sc.Capabilities.Add {
				if added == "CAP_SYS_ADMIN" {
					c.invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
				}
			}
		}
	}
	c.appArmor(at.Child("appArmorProfile"), sc.AppArmorProfile)
	c.windowsOptions(at.Child("windowsOptions"), sc.WindowsOptions)
}

func (p *problems) seccomp(at path, profile *corev1.SeccompProfile) {
	if profile == nil {
		return
	}
	local := profile.Type == corev1.SeccompProfileTypeLocalhost
	if profile.Type == "" {
		p.required(at.Child("type"), "type is required when seccompProfile is set")
	} else {
		oneOf(p, at.Child("type"), profile.Type,
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	}
	switch {
	case local && profile.LocalhostProfile == nil:
		p.required(at.Child("localhostProfile"), "must be set when seccomp type is Localhost")
	case local:
		p.descending(at.Child("localhostProfile"), *profile.LocalhostProfile)
	case profile.LocalhostProfile != nil:
		p.invalid(at.Child("localhostProfile"), profile, "can only be set when seccomp type is Localhost")
	}
}

const maxAppArmorProfile = 4095 // PATH_MAX - 1

// AppArmorProfile checks an AppArmor profile. None is valid.
func AppArmorProfile(at *field.Path, profile *corev1.AppArmorProfile) field.ErrorList {
	p := &problems{}
	p.appArmor(at, profile)
	return p.list
}

func (p *problems) appArmor(at path, profile *corev1.AppArmorProfile) {
	if profile == nil {
		return
	}
	file := at.Child("localhostProfile")
	switch profile.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		const must = "must be set when AppArmor type is Localhost"
		if profile.LocalhostProfile == nil {
			p.required(file, must)
			return
		}
		name := *profile.LocalhostProfile
		if strings.TrimSpace(name) != name {
			p.invalid(file, name, "must not be padded with whitespace")
		} else if name == "" {
			p.required(file, must)
		}
		if len(name) > maxAppArmorProfile {
			p.add(field.TooLong(file, "", maxAppArmorProfile))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if profile.LocalhostProfile != nil {
			p.invalid(file, *profile.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		p.required(at.Child("type"), "type is required when appArmorProfile is set")
	default:
		p.add(notSupported(at.Child("type"), profile.Type, []corev1.AppArmorProfileType{
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined,
		}))
	}
}

const maxSysctlName = 253

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// IsSysctlName reports whether name has the form of a sysctl's name.
func IsSysctlName(name string) bool {
	return len(name) <= maxSysctlName && sysctlName.MatchString(name)
}

func (c *podContext) sysctls(at path, list []corev1.Sysctl) {
	seen := map[string]bool{}
	for i, s := range list {
		at := at.Index(i).Child("name")
		switch {
		case s.Name == "":
			c.required(at, "")
		case !IsSysctlName(s.Name):
			c.invalid(at, s.Name, "must have at most %d characters and match regex %s", maxSysctlName, sysctlName)
		case seen[s.Name]:
			c.add(field.Duplicate(at, s.Name))
		}
		seen[s.Name] = true
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch {
		case c.spec.HostNetwork && strings.HasPrefix(name, "net."):
			c.invalid(at, s.Name, "may not be specified when 'hostNetwork' is true")
		case c.spec.HostIPC && ipcSysctl(name):
			c.invalid(at, s.Name, "may not be specified when 'hostIPC' is true")
		}
	}
}

// ipcSysctl reports whether a sysctl belongs to the IPC namespace.
func ipcSysctl(name string) bool {
	return strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") ||
		strings.HasPrefix(name, "fs.mqueue.") || name == "kernel.sem"
}

// os checks the pod's operating system, and that the pod uses no feature of the other one.
func (c *podContext) os(spec path) {
	os := c.spec.OS
	if os == nil {
		return
	}
	at := spec.Child("os")
	if os.Name == "" {
		c.required(at.Child("name"), "")
		return
	}
	switch os.Name {
	case corev1.Linux:
		c.noWindows(spec)
	case corev1.Windows:
		c.onlyWindows(spec)
	default:
		c.add(notSupported(at, os.Name, []corev1.OSName{corev1.Linux, corev1.Windows}))
	}
}

func (c *podContext) noWindows(spec path) {
	const cannot = "windows options cannot be set for a linux pod"
	if sc := c.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		c.forbidden(spec.Child("securityContext", "windowsOptions"), cannot)
	}
	pods.Visit(c.spec, spec, func(at path, ctr *corev1.Container) {
		if ctr.SecurityContext != nil && ctr.SecurityContext.WindowsOptions != nil {
			c.forbidden(at.Child("securityContext", "windowsOptions"), cannot)
		}
	})
}

func (c *podContext) onlyWindows(spec path) {
	refuse := func(at path, fields []setField) {
		for _, f := range fields {
			if f.set {
				c.forbidden(at.Child(f.name), "cannot be set for a windows pod")
			}
		}
	}
	refuse(spec, []setField{
		{"hostUsers", c.spec.HostUsers != nil},
		{"hostPID", c.spec.HostPID},
		{"hostIPC", c.spec.HostIPC},
		{"shareProcessNamespace", c.spec.ShareProcessNamespace != nil},
	})
	if sc := c.spec.SecurityContext; sc != nil {
		refuse(spec.Child("securityContext"), []setField{
			{"appArmorProfile", sc.AppArmorProfile != nil},
			{"seLinuxOptions", sc.SELinuxOptions != nil},
			{"seccompProfile", sc.SeccompProfile != nil},
			{"fsGroup", sc.FSGroup != nil},
			{"fsGroupChangePolicy", sc.FSGroupChangePolicy != nil},
			{"sysctls", len(sc.Sysctls) > 0},
			{"runAsUser", sc.RunAsUser != nil},
			{"runAsGroup", sc.RunAsGroup != nil},
			{"supplementalGroups", sc.SupplementalGroups != nil},
			{"supplementalGroupsPolicy", sc.SupplementalGroupsPolicy != nil},
			{"seLinuxChangePolicy", sc.SELinuxChangePolicy != nil},
		})
	}
	pods.Visit(c.spec, spec, func(at path, ctr *corev1.Container) {
		if sc := ctr.SecurityContext; sc != nil {
			refuse(at.Child("securityContext"), []setField{
				{"appArmorProfile", sc.AppArmorProfile != nil},
				{"seLinuxOptions", sc.SELinuxOptions != nil},
				{"seccompProfile", sc.SeccompProfile != nil},
				{"capabilities", sc.Capabilities != nil},
				{"readOnlyRootFilesystem", sc.ReadOnlyRootFilesystem != nil},
				{"privileged", sc.Privileged != nil},
				{"allowPrivilegeEscalation", sc.AllowPrivilegeEscalation != nil},
				{"procMount", sc.ProcMount != nil},
				{"runAsUser", sc.RunAsUser != nil},
				{"runAsGroup", sc.RunAsGroup != nil},
			})
		}
	})
}

// setField is the name of a field, and whether it is set.
type setField struct {
	name string
	set  bool
}
