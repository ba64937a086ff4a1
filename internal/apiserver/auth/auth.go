// Package auth decides who the clients of the API server are, and what they may do.
package auth

import (
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	authnx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver/auth/bootstraptoken"
	"wherry.dev/internal/apiserver/auth/nodeauthorizer"
	"wherry.dev/internal/apiserver/auth/rbac"
	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/loopback"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/inbound"
)

// Config says whom to trust.
type Config struct {
	// ClientCA signs the certificates of clients.
	ClientCA dynamiccertificates.CAContentProvider
	// RequestHeader selects the proxies that name the user of a request in its headers.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	// Issuers, Audiences and Keys are those of the tokens of service accounts.
	Issuers   []string
	Audiences []string
	Keys      []crypto.PublicKey
	// Authentication is what else clients are recognized by.
	Authentication Authentication
	// Authorization says who decides what they may do.
	Authorization Authorization
	// ID names this server in metrics.
	ID string
	// Clients are the components of this process.
	Clients *loopback.Clients
	// Lookup reads what tokens are bound to, and what belongs to a node.
	Lookup *registry.Lookup
	// VolumeHealth: nodes write the status of their CSINodes.
	VolumeHealth bool
}

// Auth is what requests are authenticated and authorized with. Requests that Roles and NodePods decide wait until Known says
// that these follow storage.
type Auth struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Rules lists what a user may do.
	Rules authorizer.RuleResolver
	// ByRole is RBAC alone, and Roles what it decides with.
	ByRole *rbac.Authorizer
	Roles  *rbac.Index
	// NodePods are the pods by node, for the Node authorizer.
	NodePods *nodeauthorizer.Index

	known       chan struct{} // closed once the indexes follow storage
	issuers     *issuers      // nil if there are none
	authorizers *authorizers
	stop        context.CancelFunc
}

// New returns what cfg describes. Its caller calls Run, and Close at the end.
func New(ctx context.Context, cfg Config) (_ *Auth, err error) {
	lifecycle, stop := context.WithCancel(context.WithoutCancel(ctx))
	a := &Auth{Roles: rbac.NewIndex(), NodePods: nodeauthorizer.NewIndex(), known: make(chan struct{}), stop: stop}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if cfg.Authentication.Anonymous && cfg.Authorization.allowsAll() {
		klog.FromContext(ctx).Info("AnonymousAuth is not allowed with the AlwaysAllow authorizer. " +
			"Resetting AnonymousAuth to false. You should use a different authorizer")
		cfg.Authentication.Anonymous = false
	}
	if a.Authenticator, err = a.newAuthenticator(lifecycle, &cfg); err != nil {
		return nil, err
	}
	a.ByRole = rbac.NewAuthorizer(a.Roles)
	byNode := nodeauthorizer.NewAuthorizer(a.NodePods, nodeObjects{cfg.Lookup})
	byNode.VolumeHealth = cfg.VolumeHealth
	a.authorizers = &authorizers{
		byNode: &waiting{byNode, a.known},
		byRole: &waiting{a.ByRole, a.known}, id: cfg.ID,
	}
	a.Authorizer, a.Rules = a.authorizers, a.authorizers
	return a, a.authorizers.configure(&cfg.Authorization)
}

// Known says that Roles and NodePods have read all that is stored. It is called once.
func (a *Auth) Known() { close(a.known) }

// Run follows the configuration files until ctx ends.
func (a *Auth) Run(ctx context.Context) {
	var files sync.WaitGroup
	if a.issuers != nil && a.issuers.file != nil {
		files.Go(func() { a.issuers.file.run(ctx) })
	}
	if a.authorizers.file != nil {
		files.Go(func() { a.authorizers.file.run(ctx) })
	}
	files.Wait()
}

// Close ends what New began.
func (a *Auth) Close() { a.stop() }

// tokenTTL is how long a token that was accepted is not looked at again, as upstream.
const tokenTTL = 10 * time.Second

// newAuthenticator returns an authenticator that recognizes, in this order, a component of this
// process, a proxy that names the user, a client certificate and a token. Everybody else is
// anonymous, where that is permitted.
func (a *Auth) newAuthenticator(lifecycle context.Context, cfg *Config) (authenticator.Request, error) {
	issuers, file, err := newIssuers(lifecycle, cfg)
	if err != nil {
		return nil, err
	}
	a.issuers = issuers
	tokens, err := newTokens(cfg, issuers)
	if err != nil {
		return nil, err
	}
	proxies := cfg.RequestHeader
	known := authnunion.New(
		cfg.Clients,
		headerrequest.NewDynamicVerifyOptionsSecure(proxies.CAContentProvider.VerifyOptions, proxies.AllowedClientNames,
			proxies.UsernameHeaders, proxies.UIDHeaders, proxies.GroupHeaders, proxies.ExtraHeaderPrefixes),
		authnx509.NewDynamic(cfg.ClientCA.VerifyOptions, authnx509.CommonNameUserConversion),
		bearertoken.New(tokens),
		websocket.NewProtocolAuthenticator(tokens),
	)
	all := []authenticator.Request{group.NewAuthenticatedGroupAdder(proving(known))}
	anybody, err := cfg.Authentication.anonymous(file)
	if err != nil {
		return nil, err
	}
	if anybody.Enabled {
		all = append(all, anonymous.NewAuthenticator(anybody.Conditions))
	}
	return authnunion.NewFailOnError(all...), nil
}

// newTokens returns an authenticator of tokens, in upstream's order: what is checked here comes first, and the webhook
// last. Service accounts come before other issuers of JWTs, which may fetch keys for a token that they do not know.
func newTokens(cfg *Config, issuers *issuers) (authenticator.Token, error) {
	in := &cfg.Authentication
	objects := tokenObjects{cfg.Lookup, cfg.Clients}
	var tokens []authenticator.Token
	if in.TokenFile != "" {
		static, err := tokenfile.NewCSV(in.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-auth-file: %w", err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, static))
	}
	accounts, err := token.NewAuthenticator(cfg.Issuers, cfg.Audiences, cfg.Keys, objects)
	if err != nil {
		return nil, err
	}
	tokens = append(tokens, accounts)
	if in.BootstrapTokens {
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, bootstraptoken.New(objects)))
	}
	if issuers != nil {
		tokens = append(tokens, issuers)
	}
	if in.Webhook.ConfigFile != "" {
		remote, err := newTokenWebhook(cfg)
		if err != nil {
			return nil, fmt.Errorf("--authentication-token-webhook-config-file: %w", err)
		}
		tokens = append(tokens, remote)
	}
	return tokenunion.New(cfg.Clients, tokencache.New(tokenunion.New(tokens...), true, tokenTTL, 0)), nil
}

func newTokenWebhook(cfg *Config) (authenticator.Token, error) {
	in := &cfg.Authentication.Webhook
	client, err := webhookutil.LoadKubeconfig(in.ConfigFile, nil)
	if err != nil {
		return nil, err
	}
	remote, err := webhook.New(client, in.Version, cfg.Audiences, retryBackoff)
	if err != nil {
		return nil, err
	}
	return tokencache.New(remote, false, in.CacheTTL, in.CacheTTL), nil
}

// proving tells the listener which connections come from authenticated clients.
func proving(known authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := known.AuthenticateRequest(req)
		if ok && err == nil {
			inbound.Proven(req.Context())
		}
		return resp, ok, err
	})
}

// tokenObjects looks up what tokens are bound to.
type tokenObjects struct {
	lookup  *registry.Lookup
	clients *loopback.Clients
}

// bare is the context of a request in place of another one: it ends with that, and has none of its values.
type bare struct{ context.Context }

func (bare) Value(any) any { return nil }

// Label implements token.Objects.
func (o tokenObjects) Label(ctx context.Context, secret *corev1.Secret, key, value string) error {
	client, err := kubernetes.NewForConfig(o.clients.Own())
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": secret.UID, "labels": map[string]string{key: value}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Secrets(secret.Namespace).Patch(bare{ctx}, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{}) //nolint:contextcheck // without what the request brings along
	return err
}

func (o tokenObjects) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return registry.Get[*corev1.ServiceAccount](ctx, o.lookup, schema.GroupResource{Resource: "serviceaccounts"}, namespace, name)
}

func (o tokenObjects) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return registry.Get[*corev1.Pod](ctx, o.lookup, schema.GroupResource{Resource: "pods"}, namespace, name)
}

func (o tokenObjects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return registry.Get[*corev1.Secret](ctx, o.lookup, schema.GroupResource{Resource: "secrets"}, namespace, name)
}

func (o tokenObjects) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return registry.Get[*corev1.Node](ctx, o.lookup, schema.GroupResource{Resource: "nodes"}, "", name)
}

// nodeObjects reads what the Node authorizer's index does not have.
type nodeObjects struct{ lookup *registry.Lookup }

func (o nodeObjects) PodsOn(ctx context.Context, name string) ([]corev1.Pod, error) {
	return registry.PodsOn(ctx, o.lookup, name)
}

func (o nodeObjects) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return registry.Get[*corev1.PersistentVolume](ctx, o.lookup, schema.GroupResource{Resource: "persistentvolumes"}, "", name)
}

func (o nodeObjects) VolumeOf(ctx context.Context, namespace, claim string) (*corev1.PersistentVolume, error) {
	c, err := registry.Get[*corev1.PersistentVolumeClaim](ctx, o.lookup, schema.GroupResource{Resource: "persistentvolumeclaims"}, namespace, claim)
	if err != nil || c.Spec.VolumeName == "" {
		return nil, err
	}
	volume, err := o.Volume(ctx, c.Spec.VolumeName)
	if err != nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != c.UID {
		return nil, err
	}
	return volume, nil
}

func (o nodeObjects) NodeOf(ctx context.Context, resource schema.GroupResource, namespace, name string) (string, error) {
	switch resource {
	case storagev1.Resource("volumeattachments"):
		attachment, err := registry.Get[*storagev1.VolumeAttachment](ctx, o.lookup, resource, namespace, name)
		if err != nil {
			return "", err
		}
		return attachment.Spec.NodeName, nil
	case certificatesv1.Resource("podcertificaterequests"):
		req, err := registry.Get[*certificatesv1.PodCertificateRequest](ctx, o.lookup, resource, namespace, name)
		if err != nil {
			return "", err
		}
		return string(req.Spec.NodeName), nil
	}
	return "", fmt.Errorf("%s do not name a node", resource)
}
