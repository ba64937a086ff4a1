package apiserver

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	authnx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authzunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver/auth/nodeauthorizer"
	"wherry.dev/internal/apiserver/auth/rbac"
	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/inbound"
)

// makeAuth builds what decides who clients are and what they may do.
func (s *Server) makeAuth() error {
	var err error
	s.tokens, err = token.NewAuthenticator(s.cfg.ServiceAccountIssuer, s.cfg.APIAudiences, s.creds.serviceAccountKeys, tokenObjects{s.lookup, s.ownClient})
	if err != nil {
		return err
	}
	s.authenticator, err = s.makeAuthenticator()
	if err != nil {
		return err
	}
	s.roles = rbac.NewIndex()
	s.byRole = rbac.NewAuthorizer(s.roles)
	s.nodePods = nodeauthorizer.NewIndex()
	byNode := nodeauthorizer.NewAuthorizer(s.nodePods, nodeObjects{s.lookup})
	s.rules = authzunion.NewRuleResolvers(byNode, s.byRole)
	s.authorizer, err = authzunion.New(
		authzunion.NamedAuthorizer{AuthorizerName: "Masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		authzunion.NamedAuthorizer{AuthorizerName: "Node", Authorizer: byNode},
		authzunion.NamedAuthorizer{AuthorizerName: "RBAC", Authorizer: s.byRole},
	)
	return err
}

// makeAuthenticator returns an authenticator that recognizes, in this order, a component of this
// process, a proxy that names the user, a client certificate and a token. Everybody else is
// anonymous.
func (s *Server) makeAuthenticator() (authenticator.Request, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.creds.clientCA) {
		return nil, fmt.Errorf("client CA: it contains no certificate")
	}
	opts := authnx509.DefaultVerifyOptions()
	opts.Roots = roots
	tokens := tokenunion.New(s.users, s.tokens)
	proxies := s.creds.requestHeader
	known := authnunion.New(
		inProcessAuthenticator,
		headerrequest.NewDynamicVerifyOptionsSecure(proxies.CAContentProvider.VerifyOptions, proxies.AllowedClientNames,
			proxies.UsernameHeaders, proxies.UIDHeaders, proxies.GroupHeaders, proxies.ExtraHeaderPrefixes),
		authnx509.New(opts, authnx509.CommonNameUserConversion),
		bearertoken.New(tokens),
		websocket.NewProtocolAuthenticator(tokens),
	)
	all := []authenticator.Request{group.NewAuthenticatedGroupAdder(proving(known))}
	if s.cfg.AnonymousAuth {
		all = append(all, anonymous.NewAuthenticator(nil))
	}
	return authnunion.NewFailOnError(all...), nil
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

// secure configures TLS and authentication.
func (s *Server) secure(cfg *genericapiserver.Config) error {
	serving, err := dynamiccertificates.NewStaticCertKeyContent("serving-cert", s.creds.servingCert, s.creds.servingKey)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	clientCA, err := dynamiccertificates.NewStaticCAContent("client-ca", s.creds.clientCA)
	if err != nil {
		return fmt.Errorf("client CA: %w", err)
	}
	cfg.SecureServing = &genericapiserver.SecureServingInfo{
		Listener: s.listener, Cert: serving,
		ClientCA: dynamiccertificates.NewUnionCAContentProvider(clientCA, s.creds.requestHeader.CAContentProvider),
	}
	cfg.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return s.listener.Handler(genericapiserver.DefaultBuildHandlerChain(api, c))
	}
	cfg.Authentication.Authenticator = s.authenticator
	cfg.Authentication.RequestHeaderConfig = s.creds.requestHeader
	cfg.Authentication.APIAudiences = s.cfg.APIAudiences
	return nil
}

// advertised returns the host and port at which others reach us.
func (s *Server) advertised() string {
	return net.JoinHostPort(s.cfg.AdvertiseAddress.String(), strconv.Itoa(s.cfg.SecurePort))
}

// tokenObjects looks up what tokens are bound to.
type tokenObjects struct {
	lookup *registry.Lookup
	client func() (kubernetes.Interface, error)
}

// bare is the context of a request in place of another one: it ends with that, and has none of its values.
type bare struct{ context.Context }

func (bare) Value(any) any { return nil }

// Label implements token.Objects.
func (o tokenObjects) Label(ctx context.Context, secret *corev1.Secret, key, value string) error {
	client, err := o.client()
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
