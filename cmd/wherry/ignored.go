package main

import "wherry.dev/internal/component"

// Reasons why flags have no effect. The first two are those of flags that need no value.
const (
	alwaysOn           = "it is always on"
	notSupportedSwitch = "it is not supported"
	fixedWorkers       = "the number of workers is fixed"
	fixedTime          = "the time is upstream's default"
)

// ignored returns flags that are accepted without effect, each with the reason.
func ignored(reasons map[string]string) component.NoEffect {
	n := component.NoEffect{Ignored: reasons}
	for name, why := range reasons {
		if why == alwaysOn || why == notSupportedSwitch {
			n.Switches = append(n.Switches, name)
		}
	}
	return n
}
