package component

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestFlagsWithoutEffect(t *testing.T) {
	n := NoEffect{
		Ignored:  map[string]string{"old": "it is over", "switch": "it is on"},
		Refused:  map[string]Refusal{"more": {"there is no more", IsZero}, "no": {"it cannot be", IsFalse}},
		Switches: []string{"switch", "no"},
	}.With(Emulation)
	for _, c := range []struct {
		args  string
		wants []string // in the error
	}{
		{"--old value --switch --more 0 --no=false", nil},
		{"--more=1 --no", []string{"--more 1 cannot be granted, leave it out: there is no more", "--no true cannot"}},
		{"--emulated-version=kube=1.37 --min-compatibility-version=1.36", nil},
		{"--emulated-version 1.37", nil},
		{"--emulated-version=kube=1.36", []string{"--emulated-version kube=1.36 cannot"}},
		{"--emulated-version=1.37,other=1.0", []string{"other=1.0 cannot"}},
	} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		n.AddFlags(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil || f.NArg() > 0 {
			t.Errorf("%s: %v, left over %q", c.args, err, f.Args())
			continue
		}
		err := errors.Join(n.Check(f)...)
		if (err != nil) != (c.wants != nil) {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.args, err, want)
			}
		}
	}
}
