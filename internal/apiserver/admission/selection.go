package admission

import (
	"fmt"
	"slices"
	"strings"
)

// Selection says which plugins run: those that are on by default and those of Enable, without those of
// Disable. ConfigFile is an AdmissionConfiguration with what they are configured by; "" is none.
type Selection struct {
	Enable, Disable []string
	ConfigFile      string
}

// Names returns the names of all plugins, in the order in which they run.
func Names() []string { return namesOf(func(row) bool { return true }) }

// Defaults returns the names of the plugins that are on by default.
func Defaults() []string { return namesOf(func(r row) bool { return r.on }) }

func (s Selection) names() []string {
	return namesOf(func(r row) bool {
		return slices.Contains(s.Enable, r.name) || r.on && !slices.Contains(s.Disable, r.name)
	})
}

func namesOf(wanted func(row) bool) []string {
	var out []string
	for _, r := range table {
		if wanted(r) {
			out = append(out, r.name)
		}
	}
	return out
}

// inactive are upstream's plugins that do nothing: JobValidation, whose feature is off (WorkloadWithJob), and
// PodGroupWorkloadExists, which Kubernetes 1.37 no longer has.
var inactive = []string{"PodGroupWorkloadExists", "JobValidation"}

// Validate returns what is wrong with the flags, in kube-apiserver's words, and with the file.
func (s Selection) Validate() []error {
	var errs []error
	known := append(Names(), inactive...)
	for flag, list := range map[string][]string{"enable-admission-plugins": s.Enable, "disable-admission-plugins": s.Disable} {
		for _, name := range list {
			if !slices.Contains(known, name) {
				errs = append(errs, fmt.Errorf("%s plugin %q is unknown; it must be one of %s", flag, name, strings.Join(known, ", ")))
			}
		}
	}
	both := slices.DeleteFunc(slices.Clone(s.Enable), func(name string) bool { return !slices.Contains(s.Disable, name) })
	if len(both) > 0 {
		errs = append(errs, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", both))
	}
	if _, err := s.configuration(); err != nil {
		errs = append(errs, err)
	}
	return errs
}
