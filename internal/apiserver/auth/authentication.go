package auth

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/component-base/cli/flag"

	"wherry.dev/internal/safepath"
)

// Authentication says by what clients are recognized, beside certificates and the tokens of service accounts. Names,
// defaults and rules are those of kube-apiserver's flags.
type Authentication struct {
	// Anonymous lets requests without credentials in, as system:anonymous.
	Anonymous bool
	// TokenFile is a CSV file of static tokens: token, user, UID and, in one column, groups.
	TokenFile string
	// BootstrapTokens accepts the tokens of nodes that join; see package bootstraptoken.
	BootstrapTokens bool
	// ConfigFile is an AuthenticationConfiguration of apiserver.config.k8s.io. It is read again when it changes.
	ConfigFile string
	// OIDC is one issuer of JWTs; ConfigFile can have many.
	OIDC OIDC
	// Webhook asks another server about tokens that nobody here knows.
	Webhook TokenWebhook

	flags *pflag.FlagSet
}

// OIDC is an issuer of JWTs by flags.
type OIDC struct {
	IssuerURL, ClientID, CAFile   string
	UsernameClaim, UsernamePrefix string
	GroupsClaim, GroupsPrefix     string
	SigningAlgs                   []string
	RequiredClaims                map[string]string
}

// TokenWebhook is a server that is asked by TokenReviews.
type TokenWebhook struct {
	// ConfigFile is a kubeconfig of the server.
	ConfigFile string
	// Version is that of authentication.k8s.io: v1 or v1beta1.
	Version string
	// CacheTTL is how long an answer holds; 0 asks each time.
	CacheTTL time.Duration
}

// DefaultAuthentication returns upstream's defaults.
func DefaultAuthentication() Authentication {
	return Authentication{
		Anonymous: true,
		OIDC:      OIDC{UsernameClaim: "sub", SigningAlgs: []string{"RS256"}},
		Webhook:   TokenWebhook{Version: "v1beta1", CacheTTL: 2 * time.Minute},
	}
}

// AddFlags binds a to kube-apiserver's flags.
func (a *Authentication) AddFlags(fs *pflag.FlagSet) {
	a.flags = fs
	fs.BoolVar(&a.Anonymous, "anonymous-auth", a.Anonymous, "Accept requests without credentials, as system:anonymous.")
	fs.StringVar(&a.TokenFile, "token-auth-file", a.TokenFile, "CSV file of static tokens: token,user,uid,\"group1,group2\".")
	fs.BoolVar(&a.BootstrapTokens, "enable-bootstrap-token-auth", a.BootstrapTokens, "Accept tokens in secrets of the type bootstrap.kubernetes.io/token in kube-system.")
	fs.StringVar(&a.ConfigFile, "authentication-config", a.ConfigFile, "AuthenticationConfiguration: issuers of JWTs, and where anonymous requests are accepted. It is read again when it changes.")
	fs.StringVar(&a.OIDC.IssuerURL, "oidc-issuer-url", a.OIDC.IssuerURL, "URL of an issuer of JWTs; https only.")
	fs.StringVar(&a.OIDC.ClientID, "oidc-client-id", a.OIDC.ClientID, "The audience that the issuer's tokens must have.")
	fs.StringVar(&a.OIDC.CAFile, "oidc-ca-file", a.OIDC.CAFile, "Certificate authority of the issuer (default: the host's).")
	fs.StringVar(&a.OIDC.UsernameClaim, "oidc-username-claim", a.OIDC.UsernameClaim, "The claim that is the user's name.")
	fs.StringVar(&a.OIDC.UsernamePrefix, "oidc-username-prefix", a.OIDC.UsernamePrefix, "Prefix of user names; - is none (default: the issuer's URL and #, unless the claim is email).")
	fs.StringVar(&a.OIDC.GroupsClaim, "oidc-groups-claim", a.OIDC.GroupsClaim, "The claim that has the user's groups: a string or a list.")
	fs.StringVar(&a.OIDC.GroupsPrefix, "oidc-groups-prefix", a.OIDC.GroupsPrefix, "Prefix of groups.")
	fs.StringSliceVar(&a.OIDC.SigningAlgs, "oidc-signing-algs", a.OIDC.SigningAlgs, "Algorithms that tokens may be signed by: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512.")
	fs.Var(flag.NewMapStringStringNoSplit(&a.OIDC.RequiredClaims), "oidc-required-claim", "key=value of a claim that tokens must have; can be given several times.")
	fs.StringVar(&a.Webhook.ConfigFile, "authentication-token-webhook-config-file", a.Webhook.ConfigFile, "Kubeconfig of a server that is asked about tokens.")
	fs.StringVar(&a.Webhook.Version, "authentication-token-webhook-version", a.Webhook.Version, "Version of the TokenReviews that the server is sent: v1 or v1beta1.")
	fs.DurationVar(&a.Webhook.CacheTTL, "authentication-token-webhook-cache-ttl", a.Webhook.CacheTTL, "How long the server's answers hold.")
}

// Validate returns everything that is wrong. Each error names the flag to correct.
func (a *Authentication) Validate() []error {
	var errs []error
	bad := func(cond bool, msg string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(msg, args...))
		}
	}
	for flag, file := range map[string]string{
		"--token-auth-file": a.TokenFile, "--authentication-config": a.ConfigFile, "--oidc-ca-file": a.OIDC.CAFile,
		"--authentication-token-webhook-config-file": a.Webhook.ConfigFile,
	} {
		err := safepath.CheckFile(file)
		bad(err != nil, "%s: %w", flag, err)
	}
	byFlags := !reflect.DeepEqual(a.OIDC, DefaultAuthentication().OIDC)
	bad(byFlags && a.ConfigFile != "", "--authentication-config and the --oidc-* flags are mutually exclusive")
	bad(byFlags && a.ConfigFile == "" && (a.OIDC.IssuerURL == "" || a.OIDC.ClientID == ""),
		"--oidc-issuer-url and --oidc-client-id must be specified together when any --oidc-* flags are set")
	valid := oidc.AllValidSigningAlgorithms()
	for _, alg := range a.OIDC.SigningAlgs {
		bad(!slices.Contains(valid, alg), "--oidc-signing-algs: %q is not one of %q", alg, valid)
	}
	bad(!slices.Contains(reviewVersions, a.Webhook.Version),
		"--authentication-token-webhook-version %q must be one of %q", a.Webhook.Version, reviewVersions)
	bad(a.Webhook.CacheTTL < 0, "--authentication-token-webhook-cache-ttl must not be negative")
	return errs
}

// reviewVersions are the versions of the reviews that webhooks are sent.
var reviewVersions = []string{"v1", "v1beta1"}

// retryBackoff is how calls of webhooks are repeated, as upstream's are.
var retryBackoff = *options.DefaultAuthWebhookRetryBackoff()

// jwt returns the issuer as an AuthenticationConfiguration has it.
func (o *OIDC) jwt() (apiserver.JWTAuthenticator, error) {
	j := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: o.UsernameClaim, Prefix: new(o.usernamePrefix())},
		},
	}
	if o.GroupsClaim != "" {
		j.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	for claim, value := range o.RequiredClaims {
		rule := apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value}
		j.ClaimValidationRules = append(j.ClaimValidationRules, rule)
	}
	if o.CAFile != "" {
		ca, err := os.ReadFile(o.CAFile)
		if err != nil {
			return j, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		j.Issuer.CertificateAuthority = string(ca)
	}
	return j, nil
}

// usernamePrefix keeps the users of an issuer apart from others' unless they are told by their e-mail address, or
// somebody wants them as they are.
func (o *OIDC) usernamePrefix() string {
	switch {
	case o.UsernamePrefix == "-":
		return ""
	case o.UsernamePrefix == "" && o.UsernameClaim != "email":
		return o.IssuerURL + "#"
	}
	return o.UsernamePrefix
}

// anonymous returns where requests without credentials are accepted: by the file, or else by the flag.
func (a *Authentication) anonymous(file *apiserver.AuthenticationConfiguration) (apiserver.AnonymousAuthConfig, error) {
	switch {
	case file == nil || file.Anonymous == nil:
		return apiserver.AnonymousAuthConfig{Enabled: a.Anonymous}, nil
	case a.flags != nil && a.flags.Changed("anonymous-auth"):
		err := errors.New("--anonymous-auth cannot be set when --authentication-config has the field anonymous")
		return apiserver.AnonymousAuthConfig{}, err
	}
	return *file.Anonymous, nil
}
