package component

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format json
	"k8s.io/component-base/metrics"
	kubeversion "k8s.io/component-base/version"
)

// Common is what every program of upstream's has flags for: its log, which of its metrics it serves, and its version.
type Common struct {
	logging *logsapi.LoggingConfiguration
	metrics *metrics.Options
	chosen  *pflag.FlagSet // of metrics
}

// AddCommon adds the flags to a command. What they say is done by Apply.
func AddCommon(cmd *cobra.Command) *Common {
	c := &Common{logging: logsapi.NewLoggingConfiguration(), metrics: metrics.NewOptions(), chosen: pflag.NewFlagSet("", pflag.ContinueOnError)}
	logsapi.AddFlags(c.logging, cmd.Flags())
	c.metrics.AddFlags(c.chosen)
	cmd.Flags().AddFlagSet(c.chosen)
	AddVersion(cmd)
	return c
}

// AddVersion adds --version, which prints the version of Kubernetes in the words that installers expect.
func AddVersion(cmd *cobra.Command) {
	cmd.Version = kubeversion.Get().GitVersion
	cmd.SetVersionTemplate("Kubernetes {{.Version}}\n")
}

// Apply sets up the log, and what metrics are to be. It is called once, before anything is logged or measured.
func (c *Common) Apply() error {
	if errs := c.metrics.Validate(); len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := logsapi.ValidateAndApply(c.logging, nil); err != nil {
		return fmt.Errorf("logging: %w", err)
	}
	given := false
	c.chosen.VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	if given { // without, it complains about the file that is not there
		c.metrics.Apply()
	}
	return nil
}
