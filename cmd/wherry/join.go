package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"wherry.dev/internal/config"
	"wherry.dev/internal/daemon"
	"wherry.dev/internal/safepath"
)

// envToken has the token of `wherry join`, for those who do not want it on a command line.
const envToken = "WHERRY_TOKEN"

func joinCommand(d *dirs) *cobra.Command {
	cfg := config.Default()
	var file string
	var token tokenFlags
	var detach bool
	cmd := &cobra.Command{
		Use:   "join [URL]",
		Short: "Start a node of somebody else's server: kubelet, runtime, network, services, DNS",
		Long: `Starts a node alone, which joins the cluster of the server at URL: its kubelet, container
runtime, network, services and DNS, and nothing of the control plane. The first time it needs a
token of ` + "`wherry token create`" + `, which also says by which certificate authority the server is
known; from then on the node has a certificate of its own, which it renews. Servers made by kubeadm
are joined the same way: append a dot and the CA's hash to the token, and give --cluster-cidr.

The token can also be in $` + envToken + ` or in a file. Stopping or killing the node leaves its
containers running; the next join on the same folders finds them and carries on.`,
		Example: `  wherry join https://192.0.2.1:6443 --token abcdef.0123456789abcdef.HASH --detach
  wherry join --detach      # again, after a reboot`,
		Args: cobra.MaximumNArgs(1),
	}
	cfg.AddJoinFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "config file (default "+config.DefaultConfigFile+", where it exists)")
	token.add(cmd)
	cmd.Flags().BoolVar(&detach, "detach", false, "keep running in the background; return when the node is Ready")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := daemon.RequireRoot(); err != nil {
			return err
		}
		full, err := loadConfig(cmd.Flags(), d, file, func(c *config.Config) error {
			return setServer(c, args)
		})
		if err != nil {
			return err
		}
		token, err := token.read()
		if err != nil {
			return err
		}
		if detach {
			return upDetached(cmd.Context(), cmd.ErrOrStderr(), full, token)
		}
		return upForeground(cmd.Context(), cmd.ErrOrStderr(), full, token)
	}
	return cmd
}

// tokenFlags say what somebody joins with.
type tokenFlags struct{ token, file string }

func (t *tokenFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.token, "token", "", "token to join with, from 'wherry token create' (default $"+envToken+")")
	cmd.Flags().StringVar(&t.file, "token-file", "", "file with the token")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
}

// read returns the token; "" if there is none.
func (t *tokenFlags) read() (string, error) {
	fromEnv := os.Getenv(envToken)
	_ = os.Unsetenv(envToken) // our children must not inherit it
	switch {
	case t.file != "":
		data, err := safepath.ReadFile(t.file, safepath.ConfigSize)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	case t.token != "":
		return t.token, nil
	}
	return fromEnv, nil
}

// setServer says which server a node joins: the one that was named, or that of the configuration, or the one that it has
// joined before.
func setServer(c *config.Config, args []string) (err error) {
	c.Role = config.NodeOnly
	if len(args) > 0 {
		c.Server = args[0]
	}
	if c.Server == "" {
		c.Server = daemon.ServerOf(c.DataDir)
	}
	if c.Server == "" {
		return errors.New("which server? Give its URL, such as https://192.0.2.1:6443; this node has joined none before")
	}
	c.Server, err = daemon.ServerURL(c.Server)
	return err
}
