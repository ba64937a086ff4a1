package auth

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authzcel "k8s.io/apiserver/pkg/authorization/cel"
	authzmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	authzunion "k8s.io/apiserver/pkg/authorization/union"
	configmetrics "k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/safepath"
)

// authorizers decide in the order of their configuration. It can be replaced at any time.
type authorizers struct {
	byNode   decider
	byRole   decider
	compiler authzcel.Compiler // of match conditions; nil without a file
	id       string

	file    *configFile[*apiserver.AuthorizationConfiguration] // nil if flags say it
	current atomic.Pointer[authorizerChain]
}

var _ interface {
	authorizer.Authorizer
	authorizer.RuleResolver
} = (*authorizers)(nil)

// authorizerChain is what one configuration describes.
type authorizerChain struct {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// decider is one of the chain.
type decider interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// configure puts the configuration of the flags or of the file to use.
func (z *authorizers) configure(in *Authorization) error {
	if in.ConfigFile == "" {
		if err := z.replace(in.configuration()); err != nil {
			return fmt.Errorf("--authorization-mode: %w", err)
		}
		return nil
	}
	z.compiler = authzcel.NewDefaultCompiler()
	configmetrics.RegisterMetrics()
	z.file = &configFile[*apiserver.AuthorizationConfiguration]{
		flag: "--authorization-config", path: in.ConfigFile,
		parse:    func(data []byte) (*apiserver.AuthorizationConfiguration, error) { return z.parse(data, nil) },
		install:  func(_ context.Context, c *apiserver.AuthorizationConfiguration) error { return z.replace(c) },
		loaded:   func(data string) { configmetrics.RecordAuthorizationConfigLastConfigInfo(z.id, data) },
		reloaded: func(data string) { configmetrics.RecordAuthorizationConfigAutomaticReloadSuccess(z.id, data) },
		failed:   func() { configmetrics.RecordAuthorizationConfigAutomaticReloadFailure(z.id) },
	}
	config, err := z.file.load()
	if err == nil {
		err = z.replace(config)
	}
	if err != nil {
		return fmt.Errorf("--authorization-config %s: %w", in.ConfigFile, err)
	}
	var needed []string
	for _, a := range config.Authorizers {
		if a.Type != ModeWebhook {
			needed = append(needed, string(a.Type))
		}
	}
	z.file.parse = func(data []byte) (*apiserver.AuthorizationConfiguration, error) { return z.parse(data, needed) }
	return nil
}

// parse reads an AuthorizationConfiguration of any version, which must have the needed types.
func (z *authorizers) parse(data []byte, needed []string) (*apiserver.AuthorizationConfiguration, error) {
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err)
	}
	errs := validation.ValidateAuthorizationConfiguration(z.compiler, nil, config, sets.New(modes...), sets.New(ModeWebhook))
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	return config, checkNames(config, needed)
}

// replace puts a configuration to use.
func (z *authorizers) replace(config *apiserver.AuthorizationConfiguration) error {
	chain := []authzunion.NamedAuthorizer{
		// No authorizer of the configuration can have this name.
		{AuthorizerName: "Masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
	}
	var rules []authorizer.RuleResolver
	for _, one := range config.Authorizers {
		d, err := z.decider(&one)
		if err != nil {
			return fmt.Errorf("authorizer %s: %w", one.Name, err)
		}
		counted := authzmetrics.InstrumentedAuthorizer(string(one.Type), one.Name, d)
		chain = append(chain, authzunion.NamedAuthorizer{AuthorizerName: one.Name, Authorizer: counted})
		rules = append(rules, d)
	}
	all, err := authzunion.New(chain...)
	if err != nil {
		return err
	}
	z.current.Store(&authorizerChain{all, authzunion.NewRuleResolvers(rules...)})
	return nil
}

func (z *authorizers) decider(one *apiserver.AuthorizerConfiguration) (decider, error) {
	switch one.Type {
	case ModeNode:
		return z.byNode, nil
	case ModeRBAC:
		return z.byRole, nil
	case ModeAlwaysAllow:
		return authorizerfactory.NewAlwaysAllowAuthorizer(), nil
	case ModeAlwaysDeny:
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	case ModeWebhook:
		return z.webhook(one.Name, one.Webhook)
	}
	return nil, fmt.Errorf("unknown authorization mode %s", one.Type)
}

// accessMetrics are what upstream's API server counts of its webhooks.
type accessMetrics struct {
	webhookmetrics.NoopRequestMetrics
	webhookmetrics.WebhookMetrics
	authzcel.MatcherMetrics
}

func (z *authorizers) webhook(name string, config *apiserver.WebhookConfiguration) (decider, error) {
	client, err := connect(&config.ConnectionInfo)
	if err != nil {
		return nil, err
	}
	client.Timeout = config.Timeout.Duration
	onError := authorizer.DecisionNoOpinion
	if config.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	authorized, unauthorized := config.AuthorizedTTL.Duration, config.UnauthorizedTTL.Duration
	if !config.CacheAuthorizedRequests {
		authorized = 0
	}
	if !config.CacheUnauthorizedRequests {
		unauthorized = 0
	}
	count := accessMetrics{WebhookMetrics: webhookmetrics.NewWebhookMetrics(), MatcherMetrics: authzcel.NewMatcherMetrics()}
	return webhook.New(client, config.SubjectAccessReviewVersion, authorized, unauthorized, retryBackoff, onError,
		config.MatchConditions, name, count, z.compiler)
}

// connect returns how a webhook is reached.
func connect(info *apiserver.WebhookConnectionInfo) (*rest.Config, error) {
	if info.Type == apiserver.AuthorizationWebhookConnectionInfoTypeInCluster {
		return rest.InClusterConfig()
	}
	if err := safepath.CheckFile(*info.KubeConfigFile); err != nil {
		return nil, err
	}
	return webhookutil.LoadKubeconfig(*info.KubeConfigFile, nil)
}

// Authorize implements authorizer.Authorizer.
func (z *authorizers) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return z.current.Load().Authorize(ctx, a)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (z *authorizers) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return z.current.Load().ConditionsAwareAuthorize(ctx, a)
}

// EvaluateConditions implements authorizer.Authorizer. A decision of authorizers that were replaced in the meantime
// fails closed.
func (z *authorizers) EvaluateConditions(ctx context.Context, d authorizer.ConditionsAwareDecision, data authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return z.current.Load().EvaluateConditions(ctx, d, data)
}

// RulesFor implements authorizer.RuleResolver.
func (z *authorizers) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return z.current.Load().RulesFor(ctx, u, namespace)
}
