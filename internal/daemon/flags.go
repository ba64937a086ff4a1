package daemon

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// setFlags sets flags of a component on top of what it has. Each of args is NAME=VALUE, or NAME for a switch, with
// or without dashes before it. Flags in taken belong to somebody else, for the reason that stands there.
func setFlags(fs *pflag.FlagSet, component string, args []string, taken map[string]string) error {
	var errs []error
	for _, arg := range args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		f := fs.Lookup(name)
		switch why, no := taken[name]; {
		case no:
			errs = append(errs, fmt.Errorf("%s cannot be set here: %s", name, why))
		case f == nil:
			errs = append(errs, fmt.Errorf("%q is not a flag of %s", name, component))
		case !given && f.NoOptDefVal == "":
			errs = append(errs, fmt.Errorf("%s needs a value: %s=VALUE", name, name))
		case !given:
			errs = append(errs, fs.Set(name, f.NoOptDefVal))
		default:
			errs = append(errs, fs.Set(name, value))
		}
	}
	return errors.Join(errs...)
}
