package main

import (
	"context"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// Reasons why flags have no effect. The first two are those of flags that need no value.
const (
	alwaysOn           = "it is always on"
	notSupportedSwitch = "it is not supported"
	fixedWorkers       = "the number of workers is fixed"
	fixedTime          = "the time is upstream's default"
)

// ignoredFlags are upstream's flags that have no effect here, each with the reason.
type ignoredFlags map[string]string

func (i ignoredFlags) addTo(f *pflag.FlagSet) {
	for name, why := range i {
		usage := "Accepted without effect: " + why + "."
		if why == alwaysOn || why == notSupportedSwitch {
			f.Bool(name, false, usage)
		} else {
			f.String(name, "", usage)
		}
		f.Lookup(name).Hidden = true
	}
}

// warn logs which of them were given.
func (i ignoredFlags) warn(ctx context.Context, f *pflag.FlagSet) {
	f.Visit(func(f *pflag.Flag) {
		if why, ok := i[f.Name]; ok {
			klog.FromContext(ctx).Info("Flag has no effect", "flag", "--"+f.Name, "reason", why)
		}
	})
}
