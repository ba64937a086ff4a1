package oci

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// UlimitAnnotation followed by the name of a container is how pods ask containerd and CRI-O for
// resource limits (NRI plugin ulimit-adjuster): CRI has no field for them. Its value is a YAML
// list of {type, soft, hard}.
const UlimitAnnotation = "ulimits.nri.containerd.io/container."

// rlimits maps the names of the limits in setrlimit(2) to their numbers.
var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

// ParseUlimit parses a limit as Docker and CRI-O write it: nofile=1024:2048, or
// nofile=1024 for both; -1 is unlimited.
func ParseUlimit(s string) (specs.POSIXRlimit, error) {
	name, values, ok := strings.Cut(s, "=")
	if !ok {
		return specs.POSIXRlimit{}, fmt.Errorf("ulimit %q: want NAME=SOFT:HARD", s)
	}
	soft, hard, both := strings.Cut(values, ":")
	if !both {
		hard = soft
	}
	var l specs.POSIXRlimit
	var err error
	if l.Soft, err = parseLimit(soft); err == nil {
		l.Hard, err = parseLimit(hard)
	}
	if err != nil {
		return l, fmt.Errorf("ulimit %q: %w", s, err)
	}
	l.Type = name
	return checkUlimit(l)
}

func parseLimit(s string) (uint64, error) {
	if s == "-1" || s == "unlimited" {
		return unix.RLIM_INFINITY, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// ParseUlimits parses the value of UlimitAnnotation.
func ParseUlimits(doc string) ([]specs.POSIXRlimit, error) {
	var all []specs.POSIXRlimit
	if err := yaml.UnmarshalStrict([]byte(doc), &all); err != nil {
		return nil, fmt.Errorf("ulimits: %w", err)
	}
	for i := range all {
		var err error
		if all[i], err = checkUlimit(all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// checkUlimit checks a limit and writes its name as the runtime-spec wants it.
func checkUlimit(l specs.POSIXRlimit) (specs.POSIXRlimit, error) {
	name := strings.ToUpper(l.Type)
	if !strings.HasPrefix(name, "RLIMIT_") {
		name = "RLIMIT_" + name
	}
	if _, ok := rlimits[name]; !ok {
		return l, fmt.Errorf("ulimit %q does not exist", l.Type)
	}
	if l.Soft > l.Hard {
		return l, fmt.Errorf("ulimit %s: the soft limit %d is above the hard limit %d", l.Type, l.Soft, l.Hard)
	}
	l.Type = name
	return l, nil
}

// MergeUlimits returns base, overridden by over.
func MergeUlimits(base, over []specs.POSIXRlimit) []specs.POSIXRlimit {
	out := slices.Clone(base)
	for _, l := range over {
		if i := slices.IndexFunc(out, func(have specs.POSIXRlimit) bool { return have.Type == l.Type }); i >= 0 {
			out[i] = l
		} else {
			out = append(out, l)
		}
	}
	return out
}

// ClampUlimits lowers the limits that this process may not grant: without CAP_SYS_RESOURCE,
// nothing above its own hard limit. clamped names what was lowered.
func ClampUlimits(all []specs.POSIXRlimit) (out []specs.POSIXRlimit, clamped []string, err error) {
	out = slices.Clone(all)
	for i, l := range out {
		var own unix.Rlimit
		if err := unix.Getrlimit(rlimits[l.Type], &own); err != nil {
			return nil, nil, fmt.Errorf("read Wherry's own %s: %w", l.Type, err)
		}
		if l.Hard > own.Max {
			out[i].Hard, out[i].Soft = own.Max, min(l.Soft, own.Max)
			clamped = append(clamped, l.Type)
		}
	}
	return out, clamped, nil
}
