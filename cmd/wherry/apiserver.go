package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/component"
)

func apiserverCommand() *cobra.Command {
	cfg := apiserver.DefaultConfig()
	cfg.GarbageCollector = true // as upstream: whoever runs an API server alone brings controllers
	var common *component.Common
	cmd := &cobra.Command{
		Use:   "apiserver",
		Short: "The API server alone, with kube-apiserver's flags",
		Long: `Serves the Kubernetes API from an etcd inside this process, or from the one at
--etcd-servers. Flags are kube-apiserver's; one that has no effect here logs a warning.`,
		Example: `  wherry apiserver --data-dir /var/lib/wherry-api --secure-port 6443
  wherry apiserver --etcd-servers https://10.0.0.2:2379 --cert-dir /etc/kubernetes/pki`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := common.Apply(cmd.Context()); err != nil {
				return err
			}
			defer startPacing(cmd.Context(), ofServer)()
			if errs := cfg.Validate(); len(errs) > 0 {
				return errors.Join(errs...)
			}
			s, err := apiserver.New(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if err := component.Notify(cmd.Context(), s.Ready(), untilRestartDue(s)); err != nil {
				return fmt.Errorf("apiserver: %w", err)
			}
			return nil
		},
	}
	common = component.AddCommon(cmd, component.NoEffect{}) // cfg has those without effect
	cfg.AddFlags(cmd.Flags())
	return cmd
}

// untilRestartDue runs the server, and stops it when its etcd has failed or is about to: whatever
// started this process starts it again.
func untilRestartDue(s *apiserver.Server) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-s.RestartDue():
				stop()
			case <-ctx.Done():
			}
		}()
		return errors.Join(s.Run(ctx), s.RestartReason())
	}
}
