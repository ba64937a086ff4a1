package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"wherry.dev/internal/cni/plugin"
)

// pluginsBinary starts about ten times faster than the whole of Wherry
// (docs/adr/0004-plugins-start-fast.md).
const pluginsBinary = "wherry-cni"

func cniCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Wherry's CNI plugins, for other runtimes",
		Long: `The plugins bridge, host-local, loopback, noop and portmap, with the configuration
of the plugins of the same names that everybody uses, for containerd, CRI-O and
others. Wherry itself does not need them: its own network is built in.`,
	}
	var force bool
	install := &cobra.Command{
		Use:   "install DIR",
		Short: "Put the plugins into a folder of CNI plugins",
		Long: `Copies ` + pluginsBinary + `, which lies beside wherry, into the folder, and links each plugin's
name to it; without ` + pluginsBinary + ` the names are links to wherry itself, which work but start
more slowly. A plugin that another program installed is kept unless --force is given.`,
		Example: `  wherry cni install /opt/cni/bin`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return installPlugins(cmd.OutOrStdout(), args[0], force)
		},
	}
	install.Flags().BoolVar(&force, "force", false, "replace plugins of these names that another program installed")
	cmd.AddCommand(install)
	return cmd
}

func installPlugins(out io.Writer, dir string, force bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	target := self
	small := filepath.Join(filepath.Dir(self), pluginsBinary)
	if _, err := os.Stat(small); err == nil {
		target = pluginsBinary // relative: the folder can be mounted elsewhere
		if err := copyFile(small, filepath.Join(dir, pluginsBinary)); err != nil {
			return err
		}
	}
	for _, name := range plugin.Names() {
		link := filepath.Join(dir, name)
		if err := replaceable(link, target, force); err != nil {
			return err
		}
		tmp := link + ".new"
		if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(target, tmp); err != nil {
			return err
		}
		if err := os.Rename(tmp, link); err != nil {
			return err
		}
		fmt.Fprintln(out, link)
	}
	return nil
}

// replaceable reports whether a name is free, or a link that an earlier install made.
func replaceable(link, target string, force bool) error {
	have, err := os.Readlink(link)
	if errors.Is(err, os.ErrNotExist) || force {
		return nil
	}
	if err == nil && (have == target || have == pluginsBinary || filepath.Base(have) == "wherry") {
		return nil
	}
	return fmt.Errorf("%s already exists and is not Wherry's; remove it, or replace it with --force", link)
}

// copyFile replaces the target in one step: it may be running.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	tmp := to + ".new"
	dst, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, to)
}
