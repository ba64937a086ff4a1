package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"wherry.dev/internal/daemon"
	"wherry.dev/internal/image"
)

// imageStore is the store of an instance: its daemon's, or one opened by this process if no daemon
// runs.
type imageStore interface {
	List(ctx context.Context) ([]image.Image, error)
	Import(ctx context.Context, path string) ([]image.Image, error)
	Pull(ctx context.Context, ref string, o image.PullOptions) (image.Image, error)
	Pulls(ctx context.Context) ([]image.Pulling, error)
	Export(ctx context.Context, w io.Writer, refs ...string) error
	Remove(ctx context.Context, ref string) error
	Prune(ctx context.Context) ([]image.Image, error)
}

// localStore adapts an image.Store that this process has open.
type localStore struct{ *image.Store }

func (s localStore) List(context.Context) ([]image.Image, error) { return s.Store.List(), nil }

func (s localStore) Pulls(context.Context) ([]image.Pulling, error) { return s.Store.Pulls(), nil }

// opener opens the store of an instance without a daemon: daemon.OpenImages, or daemon.MakeImages
// for commands that add images.
type opener func(dataDir, runDir string) (*image.Store, error)

func openImages(d *dirs, open opener) (imageStore, func() error, error) {
	data, run, err := d.resolve()
	if err != nil {
		return nil, nil, err
	}
	_, err = daemon.RunningPID(data)
	switch {
	case err == nil:
		c := daemon.Dial(run)
		return c, func() error { c.Close(); return nil }, nil
	case !errors.Is(err, daemon.ErrNotRunning):
		return nil, nil, err
	}
	s, err := open(data, run)
	if err != nil {
		return nil, nil, err
	}
	return localStore{s}, s.Close, nil
}

// withImages runs fn on the instance's store.
func withImages(d *dirs, open opener, fn func(imageStore) error) error {
	s, done, err := openImages(d, open)
	if err != nil {
		return err
	}
	return errors.Join(fn(s), done())
}

func imageCommand(d *dirs) *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "Pull, import, export, list and remove images",
		Example: `  wherry image import busybox.tar
  wherry image pull docker.io/library/nginx
  wherry image export nginx busybox -o images.tar
  wherry image list -o json
  wherry image prune`,
	}
	cmd.AddCommand(imageListCommand(d), imageImportCommand(d), imageExportCommand(d),
		imagePullCommand(d), imagePullsCommand(d), imageRemoveCommand(d), imagePruneCommand(d))
	return cmd
}

func imageListCommand(d *dirs) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImages(d, daemon.OpenImages, func(s imageStore) error {
				imgs, err := s.List(cmd.Context())
				if err != nil {
					return err
				}
				return printImages(cmd.OutOrStdout(), output, imgs)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	return cmd
}

func printImages(w io.Writer, output string, imgs []image.Image) error {
	switch output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(imgs)
	case "":
	default:
		return fmt.Errorf("--output %q: want json or nothing", output)
	}
	t := printers.GetNewTabWriter(w)
	if _, err := fmt.Fprintln(t, "IMAGE\tID\tSIZE\tCREATED"); err != nil {
		return err
	}
	for _, i := range imgs {
		names := i.Tags
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		for _, n := range names {
			if _, err := fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", n, shortID(i.ID), size(i.Size), age(i.Created)); err != nil {
				return err
			}
		}
	}
	return t.Flush()
}

func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}

func age(t time.Time) string {
	if t.Unix() <= 0 {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

func imageImportCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "import ARCHIVE...", Short: "Add the images of OCI or `docker save` archives", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			return withImages(d, daemon.MakeImages, func(s imageStore) error {
				for _, f := range files {
					abs, err := filepath.Abs(f)
					if err != nil {
						return err
					}
					imgs, err := s.Import(cmd.Context(), abs)
					if err != nil {
						return err
					}
					for _, i := range imgs {
						fmt.Fprintf(cmd.OutOrStdout(), "imported %s\n", label(i))
					}
				}
				return nil
			})
		},
	}
}

func label(i image.Image) string {
	if len(i.Tags) == 0 {
		return i.ID
	}
	return strings.Join(i.Tags, " ")
}

func imageRemoveCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "remove IMAGE...", Aliases: []string{"rm"}, Short: "Remove images, or one of their tags", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, refs []string) error {
			return withImages(d, daemon.OpenImages, func(s imageStore) error {
				for _, ref := range refs {
					if err := s.Remove(cmd.Context(), ref); err != nil {
						return err
					}
					fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", ref)
				}
				return nil
			})
		},
	}
}

func imagePruneCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "prune", Short: "Remove the images that no container uses", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImages(d, daemon.OpenImages, func(s imageStore) error {
				imgs, err := s.Prune(cmd.Context())
				if err != nil {
					return err
				}
				var freed int64
				for _, i := range imgs {
					freed += i.Size
					fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", label(i))
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%d images, %s\n", len(imgs), size(freed))
				return nil
			})
		},
	}
}
