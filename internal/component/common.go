package component

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format json
	"k8s.io/component-base/metrics"
	kubeversion "k8s.io/component-base/version"
)

// Common is what every program of upstream's has flags for: its log, which of its metrics it serves, and its version; and
// those of its flags that have no effect here.
type Common struct {
	flags   *pflag.FlagSet
	without NoEffect
	logging *logsapi.LoggingConfiguration
	metrics *metrics.Options
	chosen  *pflag.FlagSet // of metrics
}

// AddCommon adds the flags to a command, also those without effect. What they say is done by Apply.
func AddCommon(cmd *cobra.Command, without NoEffect) *Common {
	without.AddFlags(cmd.Flags())
	c := &Common{flags: cmd.Flags(), without: without, logging: logsapi.NewLoggingConfiguration(), metrics: metrics.NewOptions(),
		chosen: pflag.NewFlagSet("", pflag.ContinueOnError),
	}
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

// Apply sets up the log, and what metrics are to be, and warns of flags without effect. It is called once, before anything is
// logged or measured. It returns an error for flags that are wrong or refused.
func (c *Common) Apply(ctx context.Context) error {
	if err := errors.Join(c.without.Check(c.flags)...); err != nil {
		return err
	}
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
	c.without.Warn(ctx, c.flags)
	return nil
}
