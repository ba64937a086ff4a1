package manager

import (
	"slices"
	"strings"
	"testing"
)

func TestWhichControllersRun(t *testing.T) {
	for list, want := range map[string]map[string]bool{
		"*":                       {"job-controller": true, "deployment-controller": true},
		"*,-job-controller":       {"job-controller": false, "deployment-controller": true},
		"job-controller":          {"job-controller": true, "deployment-controller": false},
		"":                        {"job-controller": false},
		"-job-controller,*":       {"job-controller": false, "deployment-controller": true},
		"job-controller,-foo,bar": nil,
	} {
		runs, err := Parse(strings.Split(list, ","))
		if list == "" {
			runs, err = Parse(nil)
		}
		if (err != nil) != (want == nil) {
			t.Errorf("%q: %v", list, err)
			continue
		}
		for name, is := range want {
			if runs(name) != is {
				t.Errorf("%q: %s runs: %v", list, name, !is)
			}
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	if names := Names(); len(slices.Compact(slices.Clone(names))) != len(table) {
		t.Error(names)
	}
}
