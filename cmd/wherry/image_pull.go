package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/printers"

	"wherry.dev/internal/daemon"
	"wherry.dev/internal/image"
)

func imagePullCommand(d *dirs) *cobra.Command {
	var creds string
	cmd := &cobra.Command{
		Use: "pull IMAGE...", Short: "Pull images from their registries", Args: cobra.MinimumNArgs(1),
		Long: `Pulls images from their registries. Credentials come from --creds, or else from
docker's config.json ($DOCKER_CONFIG, ~/.docker) with its credential helpers.`,
		Example: `  wherry image pull nginx
  wherry image pull --creds ann:s3cret registry.example/team/app:1`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			return withImages(d, daemon.MakeImages, func(s imageStore) error {
				for _, ref := range refs {
					auth, err := credentials(creds, ref)
					if err != nil {
						return err
					}
					img, err := pullWithProgress(cmd, s, ref, auth)
					if err != nil {
						return err
					}
					fmt.Fprintf(cmd.OutOrStdout(), "pulled %s %s\n", ref, img.ID)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&creds, "creds", "", "USERNAME:PASSWORD for the registry")
	return cmd
}

// credentials returns those of the command line, or what docker has for the reference's registry;
// they are then shown to that registry only.
func credentials(creds, ref string) (image.Auth, error) {
	if creds != "" {
		user, password, ok := strings.Cut(creds, ":")
		if !ok || user == "" {
			return image.Auth{}, errors.New("--creds: want USERNAME:PASSWORD")
		}
		return image.Auth{Username: user, Password: password}, nil
	}
	full, err := image.Normalize(ref)
	if err != nil {
		return image.Auth{}, err
	}
	parsed, err := name.ParseReference(full)
	if err != nil {
		return image.Auth{}, err
	}
	found, err := authn.DefaultKeychain.Resolve(parsed.Context())
	if err != nil {
		return image.Auth{}, fmt.Errorf("credentials from docker's config.json: %w", err)
	}
	a, err := found.Authorization()
	if err != nil {
		return image.Auth{}, fmt.Errorf("credentials from docker's config.json: %w", err)
	}
	if *a == (authn.AuthConfig{}) {
		return image.Auth{}, nil
	}
	return image.Auth{
		Username: a.Username, Password: a.Password, Auth: a.Auth, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
		ServerAddress: parsed.Context().RegistryStr(),
	}, nil
}

func pullWithProgress(cmd *cobra.Command, s imageStore, ref string, auth image.Auth) (image.Image, error) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		lines := progressLines{w: cmd.ErrOrStderr(), ref: ref}
		return s.Pull(cmd.Context(), ref, image.PullOptions{Auth: auth, Progress: lines.report})
	}
	bar := progressbar.NewOptions64(-1, progressbar.OptionSetDescription(ref), progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionEnableColorCodes(os.Getenv("NO_COLOR") == ""))
	img, err := s.Pull(cmd.Context(), ref, image.PullOptions{Auth: auth, Progress: func(p image.Progress) {
		bar.ChangeMax64(p.Total)
		bar.Describe(fmt.Sprintf("%s, %d of %d layers", ref, p.LayersDone, p.Layers))
		_ = bar.Set64(p.Done) // a terminal that cannot show a bar is no reason to stop
	}})
	_ = bar.Finish()
	return img, err
}

// progressLines writes a line for every tenth of an image, for logs and pipes.
type progressLines struct {
	w   io.Writer
	ref string

	mu   sync.Mutex
	next int64 // percent of the next line
}

func (l *progressLines) report(p image.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	percent := int64(100)
	if p.Total > 0 {
		percent = p.Done * 100 / p.Total
	}
	if percent < l.next || percent == 0 {
		return
	}
	l.next = percent/10*10 + 10
	fmt.Fprintf(l.w, "%s: %d%% %s of %s, %d of %d layers unpacked\n", l.ref, percent, size(p.Done), size(p.Total), p.LayersDone, p.Layers)
}

func imagePullsCommand(d *dirs) *cobra.Command {
	return &cobra.Command{
		Use: "pulls", Short: "List the image pulls in progress", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImages(d, daemon.OpenImages, func(s imageStore) error {
				pulls, err := s.Pulls(cmd.Context())
				if err != nil {
					return err
				}
				t := printers.GetNewTabWriter(cmd.OutOrStdout())
				fmt.Fprintln(t, "IMAGE\tDONE\tTOTAL\tLAYERS")
				for _, p := range pulls {
					fmt.Fprintf(t, "%s\t%s\t%s\t%d/%d\n", p.Reference, size(p.Progress.Done), size(p.Progress.Total), p.Progress.LayersDone, p.Progress.Layers)
				}
				return t.Flush()
			})
		},
	}
}
