package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"wherry.dev/internal/daemon"
)

func downCommand(d *dirs) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a node and what runs on it",
		Long: `Stops the daemon, if it runs, and all its containers: each gets a SIGTERM and ten
seconds. Only the instance's data stays on the machine; with --purge, nothing does. Pods
that were not deleted start again with the next up, and find in their volumes on disk what
they left there, as after a reboot.`,
		Example: `  wherry down
  wherry down --data-dir /srv/a --run-dir /run/a --purge`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, run, err := d.resolve()
			if err != nil {
				return err
			}
			quietLog()
			return daemon.Down(cmd.Context(), data, run, purge, func(s string) {
				fmt.Fprintln(cmd.ErrOrStderr(), "wherry: "+s)
			})
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the data too: every object, image and log of the instance")
	return cmd
}
