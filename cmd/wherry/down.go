package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"wherry.dev/internal/daemon"
)

func downCommand(d *dirs) *cobra.Command {
	var purge bool
	farewell := daemon.Farewell{Patience: 5 * time.Minute}
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a node and what runs on it",
		Long: `Stops the daemon, if it runs, and all its containers: each gets a SIGTERM and ten
seconds. Only the instance's data stays on the machine; with --purge, nothing does. Pods
that were not deleted start again with the next up, and find in their volumes on disk what
they left there, as after a reboot.

A node of a cluster says goodbye with --drain (its pods are evicted first, and start elsewhere;
budgets are respected) and --leave (its Node is deleted afterwards). Both need the API server.`,
		Example: `  wherry down
  wherry down --data-dir /srv/a --run-dir /run/a --purge
  wherry down --drain --leave --purge      # take a node out of its cluster for good`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, run, err := d.resolve()
			if err != nil {
				return err
			}
			quietLog()
			return daemon.Down(cmd.Context(), data, run, purge, farewell, func(s string) {
				fmt.Fprintln(cmd.ErrOrStderr(), "wherry: "+s)
			})
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the data too: every object, image and log of the instance")
	cmd.Flags().BoolVar(&farewell.Drain, "drain", false, "evict the node's pods first, but for those of daemon sets and of the node's own files")
	cmd.Flags().DurationVar(&farewell.Patience, "drain-timeout", farewell.Patience, "how long that may take")
	cmd.Flags().BoolVar(&farewell.Leave, "leave", false, "delete the Node afterwards, of a node that has joined a server")
	return cmd
}
