package oci

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestParseUlimit(t *testing.T) {
	for in, want := range map[string]specs.POSIXRlimit{
		"nofile=10:20":      {Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20},
		"RLIMIT_CORE=7":     {Type: "RLIMIT_CORE", Soft: 7, Hard: 7},
		"memlock=-1:-1":     {Type: "RLIMIT_MEMLOCK", Soft: unix.RLIM_INFINITY, Hard: unix.RLIM_INFINITY},
		"nproc=5:unlimited": {Type: "RLIMIT_NPROC", Soft: 5, Hard: unix.RLIM_INFINITY},
	} {
		got, err := ParseUlimit(in)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", in, err, diff)
		}
	}
	for _, bad := range []string{"", "nofile", "nofile=", "nosuch=1", "nofile=20:10", "nofile=x", "nofile=1:2:3", "nofile=-2"} {
		if got, err := ParseUlimit(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func FuzzParseUlimits(f *testing.F) {
	f.Add("- type: RLIMIT_NOFILE\n  hard: 2\n  soft: 1\n")
	f.Add("- {type: memlock, hard: 18446744073709551615, soft: 0}\n")
	f.Fuzz(func(t *testing.T, doc string) {
		all, err := ParseUlimits(doc)
		if err != nil {
			return
		}
		for _, l := range all {
			if _, ok := rlimits[l.Type]; !ok || l.Soft > l.Hard {
				t.Errorf("%q became %+v", doc, l)
			}
		}
	})
}

func FuzzParseUlimit(f *testing.F) {
	f.Add("nofile=1:2")
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := ParseUlimit(s); err == nil && l.Soft > l.Hard {
			t.Errorf("%q became %+v", s, l)
		}
	})
}

func TestParseFeatures(t *testing.T) {
	got, err := parseFeatures([]byte(`{"ociVersionMin":"1.0.0","mountOptions":["ro","rro"],"linux":{"namespaces":["pid","user"]}}`))
	if want := (Features{true, true}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := parseFeatures([]byte(`unknown command features`)); err == nil || got != (Features{}) {
		t.Errorf("%+v, %v", got, err)
	}
}
