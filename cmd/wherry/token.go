package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/config"
	"wherry.dev/internal/daemon"
)

// Defaults of tokens, kubeadm's.
const (
	tokenTTL = 24 * time.Hour
	// serverTokenTTL is shorter: whoever has such a token gets all keys of the cluster.
	serverTokenTTL = time.Hour
	tokenGroup     = "system:bootstrappers:kubeadm:default-node-token"
)

var tokenUsages = []string{"signing", "authentication"}

func tokenCommand(d *dirs) *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Tokens with which nodes join: create, list, delete",
		Long: `Tokens are bootstrap tokens as kubeadm makes them: secrets in kube-system, each with an end and
usages. What create prints has the hash of the cluster's certificate authority behind it, so that
whoever joins with it cannot be led to another server.`,
	}
	cmd.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of an administrator (default: that of the server in --data-dir)")
	connect := func() (*tokens, error) { return openTokens(d, kubeconfig) }
	cmd.AddCommand(tokenCreate(connect), tokenList(connect), tokenDelete(connect))
	return cmd
}

// tokens are those of one cluster.
type tokens struct {
	clientset.Interface
	cfg     *rest.Config
	dataDir string // of the server here
}

func openTokens(d *dirs, kubeconfig string) (*tokens, error) {
	data, _, err := config.Dirs(d.data, d.run)
	if err != nil {
		return nil, err
	}
	if kubeconfig == "" {
		c := config.Config{DataDir: data}
		kubeconfig = c.Kubeconfig()
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: run this where the server is, with its --data-dir, or give --kubeconfig", err)
	}
	if err != nil {
		return nil, err
	}
	cfg.WarningHandler = rest.NoWarnings{}
	client, err := clientset.NewForConfig(cfg)
	return &tokens{client, cfg, data}, err
}

// hash returns by which authority the cluster is known.
func (t *tokens) hash() (string, error) {
	if err := rest.LoadTLSFiles(t.cfg); err != nil {
		return "", err
	}
	if len(t.cfg.CAData) == 0 {
		return "", errors.New("the kubeconfig names no certificate authority, by which nodes could know the server")
	}
	all, err := cluster.CAHashes(t.cfg.CAData)
	if err != nil {
		return "", err
	}
	return all[0], nil
}

func tokenCreate(connect func() (*tokens, error)) *cobra.Command {
	ttl, usages, groups, description := tokenTTL, slices.Clone(tokenUsages), []string{tokenGroup}, ""
	var server bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token, and print it",
		Example: `  wherry token create
  wherry token create --ttl 10m --description "for the new rack"
  wherry token create --ttl 0        # for ever; delete it when it has done its work
  wherry token create --server       # for another server, which gets the cluster's keys with it`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "how long the token is good; 0 for ever")
	cmd.Flags().StringSliceVar(&usages, "usages", usages, "what the token is for: signing, authentication")
	cmd.Flags().StringSliceVar(&groups, "groups", groups, "groups of those who come with the token, besides system:bootstrappers")
	cmd.Flags().StringVar(&description, "description", "", "what people should know of it")
	cmd.Flags().BoolVar(&server, "server", false, "for another server of this cluster, which gets the cluster's keys with it; --ttl is 1h then, if not given")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if server {
			groups = append(groups, cluster.ServersGroup)
			if !cmd.Flags().Changed("ttl") {
				ttl = serverTokenTTL
			}
		}
		if err := checkTokenFlags(ttl, usages, groups); err != nil {
			return err
		}
		t, err := connect()
		if err != nil {
			return err
		}
		token, err := t.create(cmd.Context(), ttl, usages, groups, description, server)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), token)
		if server {
			fmt.Fprintf(cmd.ErrOrStderr(), "wherry: on the new server: wherry up --join-server %s --token TOKEN --detach\n", t.server(cmd.Context()))
			return nil
		}
		if slices.Contains(usages, "authentication") {
			fmt.Fprintf(cmd.ErrOrStderr(), "wherry: on the new node: wherry join %s --token TOKEN --detach\n", t.server(cmd.Context()))
		}
		return nil
	}
	return cmd
}

func checkTokenFlags(ttl time.Duration, usages, groups []string) error {
	if ttl < 0 {
		return fmt.Errorf("--ttl %s must not be negative", ttl)
	}
	for _, u := range usages {
		if !slices.Contains(bootstrap.KnownTokenUsages, u) {
			return fmt.Errorf("--usages %q: want %s", u, strings.Join(bootstrap.KnownTokenUsages, ", "))
		}
	}
	if len(usages) == 0 {
		return errors.New("--usages must name at least one")
	}
	for _, g := range groups {
		if err := bootstraputil.ValidateBootstrapGroupName(g); err != nil {
			return fmt.Errorf("--groups: %w", err)
		}
	}
	return nil
}

func (t *tokens) create(ctx context.Context, ttl time.Duration, usages, groups []string, description string, server bool) (cluster.Token, error) {
	hash, err := t.hash()
	if err != nil {
		return cluster.Token{}, err
	}
	bearer, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return cluster.Token{}, err
	}
	id, secret, _ := strings.Cut(bearer, ".")
	token := cluster.Token{ID: id, Secret: secret, CAHash: hash}
	if server {
		if token.Proof, err = daemon.ServerProof(t.dataDir, bearer); err != nil {
			return cluster.Token{}, err
		}
	}
	s := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrap.BootstrapTokenSecretPrefix + id},
		Type:       bootstrap.SecretTypeBootstrapToken,
		StringData: map[string]string{bootstrap.BootstrapTokenIDKey: id, bootstrap.BootstrapTokenSecretKey: secret},
	}
	if description != "" {
		s.StringData[bootstrap.BootstrapTokenDescriptionKey] = description
	}
	if ttl > 0 {
		s.StringData[bootstrap.BootstrapTokenExpirationKey] = time.Now().Add(ttl).UTC().Format(time.RFC3339)
	}
	if len(groups) > 0 {
		s.StringData[bootstrap.BootstrapTokenExtraGroupsKey] = strings.Join(groups, ",")
	}
	for _, u := range usages {
		s.StringData[bootstrap.BootstrapTokenUsagePrefix+u] = "true"
	}
	if _, err := t.CoreV1().Secrets(s.Namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return cluster.Token{}, fmt.Errorf("create the token: %w", err)
	}
	return token, nil
}

// server returns the URL at which others reach the server: what it publishes itself, or else what the kubeconfig says.
func (t *tokens) server(ctx context.Context) string {
	cm, err := t.CoreV1().ConfigMaps(cluster.InfoNamespace).Get(ctx, cluster.InfoName, metav1.GetOptions{})
	if err == nil {
		if published, err := clientcmd.Load([]byte(cm.Data[cluster.InfoKey])); err == nil {
			for _, c := range published.Clusters {
				return c.Server
			}
		}
	}
	return t.cfg.Host
}

// tokenInfo is what list says of a token. The secret part is not in it.
type tokenInfo struct {
	ID          string     `json:"id"`
	Expires     *time.Time `json:"expires,omitempty"`
	Usages      []string   `json:"usages"`
	Groups      []string   `json:"groups,omitempty"`
	Description string     `json:"description,omitempty"`
}

func infoOf(s *v1.Secret) tokenInfo {
	i := tokenInfo{ID: string(s.Data[bootstrap.BootstrapTokenIDKey]), Description: string(s.Data[bootstrap.BootstrapTokenDescriptionKey]), Usages: []string{}}
	if at, err := time.Parse(time.RFC3339, string(s.Data[bootstrap.BootstrapTokenExpirationKey])); err == nil {
		i.Expires = &at
	}
	for _, u := range bootstrap.KnownTokenUsages {
		if string(s.Data[bootstrap.BootstrapTokenUsagePrefix+u]) == "true" {
			i.Usages = append(i.Usages, u)
		}
	}
	if g := string(s.Data[bootstrap.BootstrapTokenExtraGroupsKey]); g != "" {
		i.Groups = strings.Split(g, ",")
	}
	return i
}

func tokenList(connect func() (*tokens, error)) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the tokens, without their secrets",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or a table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output != "" && output != "json" {
			return fmt.Errorf("--output %q must be json", output)
		}
		t, err := connect()
		if err != nil {
			return err
		}
		list, err := t.CoreV1().Secrets(metav1.NamespaceSystem).List(cmd.Context(), metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("type", string(bootstrap.SecretTypeBootstrapToken)).String(),
		})
		if err != nil {
			return fmt.Errorf("list tokens: %w", err)
		}
		infos := make([]tokenInfo, 0, len(list.Items))
		for i := range list.Items {
			infos = append(infos, infoOf(&list.Items[i]))
		}
		if output == "json" {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(infos)
		}
		return printTokens(cmd.OutOrStdout(), infos, time.Now())
	}
	return cmd
}

func printTokens(out io.Writer, infos []tokenInfo, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "ID\tTTL\tEXPIRES\tUSAGES\tGROUPS\tDESCRIPTION")
	for _, i := range infos {
		ttl, at := "<forever>", "<never>"
		if i.Expires != nil {
			ttl, at = "<expired>", i.Expires.Format(time.RFC3339)
			if left := i.Expires.Sub(now); left > 0 {
				ttl = duration.ShortHumanDuration(left)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", i.ID, ttl, at, orNone(strings.Join(i.Usages, ",")), orNone(strings.Join(i.Groups, ",")), orNone(i.Description))
	}
	return w.Flush()
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

func tokenDelete(connect func() (*tokens, error)) *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID…",
		Aliases: []string{"rm"},
		Short:   "Delete tokens, by their IDs or whole: nobody can join with them any more",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := connect()
			if err != nil {
				return err
			}
			var errs []error
			for _, arg := range args {
				id, _, _ := strings.Cut(arg, ".")
				if !bootstraputil.IsValidBootstrapTokenID(id) {
					errs = append(errs, fmt.Errorf("%q is not the ID of a token", arg))
					continue
				}
				err := t.CoreV1().Secrets(metav1.NamespaceSystem).Delete(cmd.Context(), bootstrap.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{})
				switch {
				case apierrors.IsNotFound(err):
					errs = append(errs, fmt.Errorf("there is no token %s", id))
				case err != nil:
					errs = append(errs, fmt.Errorf("delete the token %s: %w", id, err))
				default:
					fmt.Fprintf(cmd.OutOrStdout(), "token %s deleted\n", id)
				}
			}
			return errors.Join(errs...)
		},
	}
}
