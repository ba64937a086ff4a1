package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/internal/daemon"
)

func etcdCommand(d *dirs) *cobra.Command {
	cmd := &cobra.Command{
		Use: "etcd", Short: "Save, restore and look after the cluster's data",
		Long: `The cluster's data are in an etcd inside the process of wherry up, without a listener for
clients; those of several servers are members of one cluster. These commands do what etcdctl and
etcdutl do for others. An external etcd (--etcd-servers) has its own tools; compact and defrag
work with it, too.`,
		Example: `  wherry etcd snapshot save /backup/today.db
  wherry etcd snapshot status /backup/today.db
  wherry down && wherry etcd snapshot restore /backup/today.db --replace && wherry up --detach`,
	}
	snapshot := &cobra.Command{Use: "snapshot", Short: "Save, check and restore snapshots of the cluster's data"}
	snapshot.AddCommand(etcdSaveCommand(d), etcdRestoreCommand(d), etcdStatusCommand())
	member := &cobra.Command{Use: "member", Short: "The etcds of the cluster's servers"}
	member.AddCommand(etcdMembersCommand(d), etcdRemoveCommand(d))
	cmd.AddCommand(snapshot, member, etcdCompactCommand(d), etcdDefragCommand(d))
	return cmd
}

// dialRunning returns a client of the instance's daemon, which must run.
func dialRunning(d *dirs) (*daemon.Client, error) {
	data, run, err := d.resolve()
	if err != nil {
		return nil, err
	}
	if _, err := daemon.RunningPID(data); err != nil {
		return nil, fmt.Errorf("%w with --data-dir %s", err, data)
	}
	return daemon.Dial(run), nil
}

func etcdSaveCommand(d *dirs) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "save FILE", Short: "Save all data of a running instance to a file", Args: cobra.ExactArgs(1),
		Long: `Writes a snapshot with every write that was acknowledged before. Writes go on meanwhile. The
file holds everything, secrets too, and only its owner can read it. The keys of the
instance are not part of it: back up DATA-DIR/pki, too.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dialRunning(d)
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.SaveSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printSnapshot(cmd.OutOrStdout(), output, args[0], s)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	return cmd
}

func etcdStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "status FILE", Short: "Check a snapshot and say what it holds", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := storage.ReadSnapshot(args[0])
			if err != nil {
				return err
			}
			return printSnapshot(cmd.OutOrStdout(), output, args[0], s)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	return cmd
}

func printSnapshot(w io.Writer, output, path string, s storage.Snapshot) error {
	switch output {
	case "json":
		return json.NewEncoder(w).Encode(s)
	case "":
		_, err := fmt.Fprintf(w, "%s: revision %d, %d keys, %d KiB, hash %08x\n", path, s.Revision, s.TotalKey, s.TotalSize>>10, s.Hash)
		return err
	}
	return errors.New("--output must be json, or left out")
}

func etcdCompactCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "compact", Short: "Drop all old revisions of the data now", Args: cobra.NoArgs,
		Long: `Drops every revision of the cluster's data but the present one, as the API server does every
five minutes with those that are older than that. Watches that are behind list again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dialRunning(d)
			if err != nil {
				return err
			}
			defer c.Close()
			revision, err := c.Compact(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "compacted up to revision %d\n", revision)
			return nil
		},
	}
}

func etcdDefragCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "defrag", Short: "Give the room of dropped revisions back to the disk", Args: cobra.NoArgs,
		Long: `Rewrites the database without its unused pages: those of revisions that were compacted. The
API waits meanwhile. If an external etcd has reached its quota, this ends its alarm.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dialRunning(d)
			if err != nil {
				return err
			}
			defer c.Close()
			members, err := c.Defragment(cmd.Context())
			if err != nil {
				return err
			}
			for _, m := range members {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %d KiB, before %d KiB\n", m.Member, m.After>>10, m.Before>>10)
			}
			return nil
		},
	}
}

func etcdRestoreCommand(d *dirs) *cobra.Command {
	r := storage.Restore{Bump: storage.DefaultBump}
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make the data of a stopped instance from a snapshot", Args: cobra.ExactArgs(1),
		Long: `Makes the cluster's data from a snapshot of wherry or of etcdctl. Either all of them are there
afterwards, or nothing has changed. Revisions continue above those that clients may
have seen since the snapshot was made; clients that know an older one list again.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			data, _, err := d.resolve()
			if err != nil {
				return err
			}
			if r.Snapshot, err = filepath.Abs(args[0]); err != nil {
				return err
			}
			out, err := daemon.RestoreSnapshot(data, r)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "restored %d keys; the revision is %d\n", out.TotalKey, out.Now)
			if out.Aside != "" {
				fmt.Fprintf(w, "the data that were there are in %s; remove them when you are content\n", out.Aside)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&r.Replace, "replace", false, "move data that are there aside")
	cmd.Flags().Uint64Var(&r.Bump, "bump-revision", r.Bump, "by how much to raise the revision; more than the writes since the snapshot was made, and than an earlier restore of it")
	return cmd
}
