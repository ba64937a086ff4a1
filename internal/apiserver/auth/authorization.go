package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"wherry.dev/internal/safepath"
)

// Modes of authorization, as --authorization-mode and an AuthorizationConfiguration name them.
const (
	ModeNode        = "Node"
	ModeRBAC        = "RBAC"
	ModeWebhook     = "Webhook"
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
)

var modes = []string{ModeAlwaysAllow, ModeAlwaysDeny, ModeWebhook, ModeRBAC, ModeNode}

// Authorization says who decides what clients may do. Names, defaults and rules are those of kube-apiserver's flags;
// the default modes are Node,RBAC, where upstream's is AlwaysAllow.
type Authorization struct {
	// Modes are asked in order, until one allows or denies.
	Modes []string
	// ConfigFile is an AuthorizationConfiguration of apiserver.config.k8s.io, in place of all else. It is read again
	// when it changes.
	ConfigFile string
	// Webhook is asked in mode Webhook.
	Webhook AccessWebhook

	flags *pflag.FlagSet
}

// AccessWebhook is a server that is asked by SubjectAccessReviews.
type AccessWebhook struct {
	// ConfigFile is a kubeconfig of the server.
	ConfigFile string
	// Version is that of authorization.k8s.io: v1 or v1beta1.
	Version string
	// AuthorizedTTL and UnauthorizedTTL are how long answers hold; 0 asks each time.
	AuthorizedTTL, UnauthorizedTTL time.Duration
}

// DefaultAuthorization returns the defaults.
func DefaultAuthorization() Authorization {
	return Authorization{
		Modes:   []string{ModeNode, ModeRBAC},
		Webhook: AccessWebhook{Version: "v1beta1", AuthorizedTTL: 5 * time.Minute, UnauthorizedTTL: 30 * time.Second},
	}
}

// AddFlags binds a to kube-apiserver's flags.
func (a *Authorization) AddFlags(fs *pflag.FlagSet) {
	a.flags = fs
	fs.StringSliceVar(&a.Modes, "authorization-mode", a.Modes, "Who decides what clients may do, in this order: "+strings.Join(modes, ", ")+".")
	fs.StringVar(&a.ConfigFile, "authorization-config", a.ConfigFile, "AuthorizationConfiguration, in place of --authorization-mode and --authorization-webhook-*. It is read again when it changes.")
	fs.StringVar(&a.Webhook.ConfigFile, "authorization-webhook-config-file", a.Webhook.ConfigFile, "Kubeconfig of the server that mode Webhook asks.")
	fs.StringVar(&a.Webhook.Version, "authorization-webhook-version", a.Webhook.Version, "Version of the SubjectAccessReviews that the server is sent: v1 or v1beta1.")
	fs.DurationVar(&a.Webhook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", a.Webhook.AuthorizedTTL, "How long the server's permissions hold.")
	fs.DurationVar(&a.Webhook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", a.Webhook.UnauthorizedTTL, "How long the server's refusals hold.")
}

// byFlags are the flags that an AuthorizationConfiguration replaces.
var byFlags = []string{
	"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-version",
	"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
}

// Validate returns everything that is wrong. Each error names the flag to correct.
func (a *Authorization) Validate() []error {
	var errs []error
	bad := func(cond bool, msg string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(msg, args...))
		}
	}
	for flag, file := range map[string]string{
		"--authorization-config": a.ConfigFile, "--authorization-webhook-config-file": a.Webhook.ConfigFile,
	} {
		err := safepath.CheckFile(file)
		bad(err != nil, "%s: %w", flag, err)
	}
	if a.ConfigFile != "" {
		bad(a.flags != nil && slices.ContainsFunc(byFlags, a.flags.Changed),
			"--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		return errs
	}
	bad(len(a.Modes) == 0, "--authorization-mode: at least one authorization mode must be passed")
	for i, mode := range a.Modes {
		bad(!slices.Contains(modes, mode), "--authorization-mode %q is not a valid mode; valid ones are %q", mode, modes)
		bad(slices.Contains(a.Modes[:i], mode), "--authorization-mode %q has mode %s specified more than once", a.Modes, mode)
	}
	asks := slices.Contains(a.Modes, ModeWebhook)
	bad(asks && a.Webhook.ConfigFile == "", "--authorization-mode Webhook needs --authorization-webhook-config-file")
	bad(!asks && a.Webhook.ConfigFile != "",
		"cannot specify --authorization-webhook-config-file without --authorization-mode Webhook")
	bad(!slices.Contains(reviewVersions, a.Webhook.Version),
		"--authorization-webhook-version %q must be one of %q", a.Webhook.Version, reviewVersions)
	bad(a.Webhook.AuthorizedTTL < 0, "--authorization-webhook-cache-authorized-ttl must not be negative")
	bad(a.Webhook.UnauthorizedTTL < 0, "--authorization-webhook-cache-unauthorized-ttl must not be negative")
	return errs
}

// allowsAll reports whether everybody may do everything; nobody may do so without a name.
func (a *Authorization) allowsAll() bool {
	return a.ConfigFile == "" && slices.Contains(a.Modes, ModeAlwaysAllow)
}

// webhookTimeout limits a call of the flags' webhook; an AuthorizationConfiguration has its own.
const webhookTimeout = 30 * time.Second

// configuration returns what the flags say as an AuthorizationConfiguration has it.
func (a *Authorization) configuration() *apiserver.AuthorizationConfiguration {
	config := &apiserver.AuthorizationConfiguration{}
	for _, mode := range a.Modes {
		one := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: nameOf(mode)}
		if mode == ModeWebhook {
			one.Name, one.Webhook = "default", a.Webhook.configuration()
		}
		config.Authorizers = append(config.Authorizers, one)
	}
	return config
}

func (w *AccessWebhook) configuration() *apiserver.WebhookConfiguration {
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: w.AuthorizedTTL}, CacheAuthorizedRequests: w.AuthorizedTTL != 0,
		UnauthorizedTTL: metav1.Duration{Duration: w.UnauthorizedTTL}, CacheUnauthorizedRequests: w.UnauthorizedTTL != 0,
		Timeout:                    metav1.Duration{Duration: webhookTimeout},
		FailurePolicy:              apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: w.Version,
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &w.ConfigFile,
		},
	}
}

// nameOf returns the name that an authorizer must have that is no webhook.
func nameOf(mode string) string { return strings.ToLower(mode) }

// checkNames returns an error if authorizers are not called by their modes, or if one of needed is missing.
func checkNames(config *apiserver.AuthorizationConfiguration, needed []string) error {
	var errs []error
	have := map[string]bool{}
	for _, a := range config.Authorizers {
		mode := string(a.Type)
		have[mode] = true
		if mode != ModeWebhook && a.Name != nameOf(mode) {
			errs = append(errs, fmt.Errorf("expected name %s for authorizer %s instead of %s", nameOf(mode), mode, a.Name))
		}
	}
	for _, mode := range needed {
		if !have[mode] {
			errs = append(errs, fmt.Errorf("missing required type: %s; types other than Webhook can only be removed "+
				"when the API server is restarted", mode))
		}
	}
	return errors.Join(errs...)
}
