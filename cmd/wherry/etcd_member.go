package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"wherry.dev/internal/apiserver/storage"
)

func etcdMembersCommand(d *dirs) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the etcds of the cluster's servers", Args: cobra.NoArgs,
		Long: `Lists the members as this server knows them, and whether they answer it. More than half of
those that vote are needed: of three, two.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output %q must be json", output)
			}
			c, err := dialRunning(d)
			if err != nil {
				return err
			}
			defer c.Close()
			members, err := c.Members(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(members)
			}
			return printMembers(cmd.OutOrStdout(), members)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or a table")
	return cmd
}

func printMembers(out io.Writer, members []storage.Member) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tADDRESS\tROLE\tSTATUS")
	for _, m := range members {
		role, status := "follower", "answers"
		switch {
		case m.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}
		switch {
		case m.Self:
			status = "this server"
		case m.Name == "" && m.Answers:
			status = "starting"
		case m.Name == "":
			status = "not started yet"
		case !m.Answers:
			status = "does not answer"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.ID, orNone(m.Name), orNone(m.Address), role, status)
	}
	return w.Flush()
}

func etcdRemoveCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME|ID", Aliases: []string{"rm"}, Short: "Take a server that will not come back out of the cluster", Args: cobra.ExactArgs(1),
		Long: `Takes the etcd of a server out of the cluster's data for good: fewer are needed for a
majority then. A server that still runs leaves by itself with wherry down --leave; after it was
taken out it can only join anew, without its data. kubectl delete node removes its node.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dialRunning(d)
			if err != nil {
				return err
			}
			defer c.Close()
			m, err := c.RemoveMember(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "removed %s (%s)\n", orNone(m.Name), m.Address)
			return nil
		},
	}
}
