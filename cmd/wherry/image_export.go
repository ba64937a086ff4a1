package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"wherry.dev/internal/daemon"
)

func imageExportCommand(d *dirs) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "export IMAGE...", Short: "Write images to an archive", Args: cobra.MinimumNArgs(1),
		Long: `Writes images to one archive that is an OCI layout and a "docker save" at the same
time: wherry image import, docker load, podman load and ctr images import take it.`,
		Example: `  wherry image export nginx busybox -o images.tar
  wherry image export nginx | gzip > nginx.tar.gz`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			return withImages(d, daemon.OpenImages, func(s imageStore) error {
				if output != "" && output != "-" {
					return exportFile(cmd, s, output, refs)
				}
				if out, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) {
					return errors.New("refusing to write an archive to a terminal: use --output FILE, or redirect standard output")
				}
				return s.Export(cmd.Context(), cmd.OutOrStdout(), refs...)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

// exportFile writes to a file next to path and renames it, so that a failed export leaves nothing
// that looks like an archive.
func exportFile(cmd *cobra.Command, s imageStore, path string, refs []string) error {
	tmp := path + ".part"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	err = s.Export(cmd.Context(), io.Writer(f), refs...)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "exported %s\n", path)
	return nil
}
