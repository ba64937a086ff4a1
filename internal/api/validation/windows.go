package validation

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"wherry.dev/internal/api/pods"
)

// What Windows allows in names of users.
const (
	maxCredentialSpec = 64 << 10
	maxWindowsDomain  = 256
	maxWindowsUser    = 104
)

var (
	control       = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOS       = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDomain = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*$`)
	dotsOrSpaces  = regexp.MustCompile(`^[\. ]+$`)
	notInUsers    = regexp.MustCompile(`["/\\:;|=,\+\*\?<>@\[\]]`)
)

func (p *problems) windowsOptions(at path, o *corev1.WindowsSecurityContextOptions) {
	if o == nil {
		return
	}
	if name := o.GMSACredentialSpecName; name != nil {
		matches(p, at.Child("gmsaCredentialSpecName"), *name, utilvalidation.IsDNS1123Subdomain(*name))
	}
	if spec := o.GMSACredentialSpec; spec != nil {
		at := at.Child("gmsaCredentialSpec")
		switch {
		case *spec == "":
			p.invalid(at, *spec, "gmsaCredentialSpec cannot be an empty string")
		case len(*spec) > maxCredentialSpec:
			p.invalid(at, *spec, "gmsaCredentialSpec size must be under %d KiB", maxCredentialSpec>>10)
		}
	}
	if o.RunAsUserName != nil {
		p.windowsUser(at.Child("runAsUserName"), *o.RunAsUserName)
	}
}

// windowsUser checks USER, or DOMAIN\USER.
func (p *problems) windowsUser(at path, name string) {
	switch {
	case name == "":
		p.invalid(at, name, "runAsUserName cannot be an empty string")
		return
	case control.MatchString(name):
		p.invalid(at, name, "runAsUserName cannot contain control characters")
		return
	case strings.Count(name, `\`) > 1:
		p.invalid(at, name, "runAsUserName cannot contain more than one backslash")
		return
	}
	domain, user, found := strings.Cut(name, `\`)
	if !found {
		domain, user = "", name
	}
	if len(domain) >= maxWindowsDomain {
		p.invalid(at, name, "runAsUserName's Domain length must be under %d characters", maxWindowsDomain)
	}
	if found && !netBIOS.MatchString(domain) && !windowsDomain.MatchString(domain) {
		p.invalid(at, name, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	if user == "" {
		p.invalid(at, name, "runAsUserName's User cannot be empty")
	} else if len(user) > maxWindowsUser {
		p.invalid(at, name, "runAsUserName's User length must not be longer than %d characters", maxWindowsUser)
	}
	if dotsOrSpaces.MatchString(user) {
		p.invalid(at, name, "runAsUserName's User cannot contain only periods or spaces")
	}
	if notInUsers.MatchString(user) {
		p.invalid(at, name, `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
}

// hostProcesses checks that all containers of a pod are processes of the host (on Windows), or none.
func (c *podContext) hostProcesses(spec path) {
	var ofPod *bool
	if sc := c.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		ofPod = sc.WindowsOptions.HostProcess
	}
	all, host := 0, 0
	pods.Visit(c.spec, spec, func(at path, ctr *corev1.Container) {
		all++
		is := ofPod
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil && sc.WindowsOptions.HostProcess != nil {
			is = sc.WindowsOptions.HostProcess
			if ofPod != nil && *is != *ofPod {
				c.invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *is,
					"pod hostProcess value must be identical if both are specified, was %v", *ofPod)
			}
		}
		if is != nil && *is {
			host++
		}
	})
	if host == 0 {
		return
	}
	if host != all {
		c.invalid(spec, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers")
	}
	if !c.spec.HostNetwork {
		c.invalid(spec.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}
