package auth

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

const (
	// issuersTimeout limits how long issuers of a changed configuration have to be reached.
	issuersTimeout = time.Minute
	// retireAfter is how long requests may still be busy with issuers that were replaced.
	retireAfter = time.Minute
)

// issuers recognizes the JWTs of the configured issuers. They can be replaced at any time.
type issuers struct {
	algorithms []string
	audiences  authenticator.Audiences
	disallowed []string
	id         string
	compiler   cel.Compiler

	file    *configFile[*apiserver.AuthenticationConfiguration] // nil if flags configure the issuer
	current atomic.Pointer[issuerSet]
}

// issuerSet are the issuers of one configuration.
type issuerSet struct {
	authenticator.Token
	urls   []string
	checks []func() error
	cancel context.CancelFunc
}

// newIssuers returns the issuers of the flags or of the file, and the file's content; both are nil if there are none.
// Issuers are reached in the background, until lifecycle ends.
func newIssuers(lifecycle context.Context, cfg *Config) (*issuers, *apiserver.AuthenticationConfiguration, error) {
	in := &cfg.Authentication
	if in.ConfigFile == "" && in.OIDC.IssuerURL == "" {
		return nil, nil, nil
	}
	i := &issuers{
		audiences: cfg.Audiences, disallowed: cfg.Issuers, id: cfg.ID, compiler: cel.NewDefaultCompiler(),
	}
	if in.ConfigFile == "" {
		i.algorithms = in.OIDC.SigningAlgs
		jwt, err := in.OIDC.jwt()
		if err != nil {
			return nil, nil, err
		}
		config := &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}
		if err := i.start(lifecycle, config); err != nil {
			return nil, nil, fmt.Errorf("--oidc-*: %w", err)
		}
		return i, nil, nil
	}
	i.algorithms = oidc.AllValidSigningAlgorithms()
	metrics.RegisterMetrics()
	i.file = &configFile[*apiserver.AuthenticationConfiguration]{
		flag: "--authentication-config", path: in.ConfigFile, parse: i.parse,
		loaded:   func(data string) { metrics.RecordAuthenticationConfigLastConfigInfo(i.id, data) },
		reloaded: func(data string) { metrics.RecordAuthenticationConfigAutomaticReloadSuccess(i.id, data) },
		failed:   func() { metrics.RecordAuthenticationConfigAutomaticReloadFailure(i.id) },
	}
	config, err := i.file.load()
	if err == nil {
		err = i.start(lifecycle, config)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--authentication-config %s: %w", in.ConfigFile, err)
	}
	i.file.parse = func(data []byte) (*apiserver.AuthenticationConfiguration, error) {
		changed, err := i.parse(data)
		if err == nil && !reflect.DeepEqual(changed.Anonymous, config.Anonymous) {
			err = errors.New("anonymous: changed from initial configuration file; restart the API server to apply it")
		}
		return changed, err
	}
	i.file.install = i.replace
	return i, config, nil
}

// AuthenticateToken implements authenticator.Token.
func (i *issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return i.current.Load().AuthenticateToken(ctx, token)
}

// parse reads an AuthenticationConfiguration of any version.
func (i *issuers) parse(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty; it must have an AuthenticationConfiguration of apiserver.config.k8s.io/v1")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", obj)
	}
	return config, validation.ValidateAuthenticationConfiguration(i.compiler, config, i.disallowed).ToAggregate()
}

// start puts the first issuers to use, whether they can be reached yet or not.
func (i *issuers) start(lifecycle context.Context, config *apiserver.AuthenticationConfiguration) error {
	set, err := i.set(lifecycle, config)
	if err != nil {
		return err
	}
	i.current.Store(set)
	return nil
}

// replace puts other issuers to use once all of them can be reached. They last no longer than lifecycle.
func (i *issuers) replace(lifecycle context.Context, config *apiserver.AuthenticationConfiguration) error {
	set, err := i.set(lifecycle, config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(lifecycle, issuersTimeout)
	defer stop()
	var last error
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		last = set.healthy()
		return last == nil, nil
	})
	if err != nil {
		set.cancel()
		return errors.Join(last, err)
	}
	i.retire(i.current.Swap(set), set.urls)
	return nil
}

// retire ends issuers after the requests that are busy with them, and then the metrics of those that are gone.
func (i *issuers) retire(old *issuerSet, stay []string) {
	time.AfterFunc(retireAfter, func() {
		old.cancel()
		time.AfterFunc(retireAfter, func() {
			for _, url := range old.urls {
				if !slices.Contains(stay, url) {
					oidc.DeleteJWKSFetchMetrics(url, i.id)
				}
			}
		})
	})
}

// set makes the issuers of a configuration, whose keys are fetched in the background until lifecycle ends.
func (i *issuers) set(lifecycle context.Context, config *apiserver.AuthenticationConfiguration) (*issuerSet, error) {
	ctx, cancel := context.WithCancel(lifecycle)
	set := &issuerSet{cancel: cancel}
	var tokens []authenticator.Token
	for _, jwt := range config.JWT {
		opts := oidc.Options{
			JWTAuthenticator: jwt, Compiler: i.compiler, SupportedSigningAlgs: i.algorithms,
			DisallowedIssuers: i.disallowed, APIServerID: i.id,
		}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			content, err := dynamiccertificates.NewStaticCAContent("oidc-authenticator", []byte(ca))
			if err != nil {
				cancel()
				return nil, err
			}
			opts.CAContentProvider = content
		}
		t, err := oidc.New(ctx, opts)
		if err != nil {
			cancel()
			return nil, err
		}
		tokens = append(tokens, t)
		set.urls, set.checks = append(set.urls, jwt.Issuer.URL), append(set.checks, t.HealthCheck)
	}
	set.Token = authenticator.WrapAudienceAgnosticToken(i.audiences, tokenunion.NewFailOnError(tokens...))
	return set, nil
}

// healthy returns an error unless the keys of all issuers are known.
func (s *issuerSet) healthy() error {
	var errs []error
	for _, check := range s.checks {
		errs = append(errs, check())
	}
	return errors.Join(errs...)
}
