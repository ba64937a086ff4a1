package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/apiserver"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"wherry.dev/internal/apiserver/openapi/ondemand"
)

// Remotes fetches the OpenAPI documents of other servers, when somebody asks for them.
type Remotes struct {
	services  listers.APIServiceLister
	resolver  apiserver.ServiceResolver
	cert, key string // files

	mu        sync.Mutex
	lastIndex map[string]index // by APIService
}

// index is what another server said about its documents.
type index struct {
	version string // of the APIService
	at      time.Time
	hash    string // of the group version's document; empty if there is none
}

const (
	// remoteTimeout is how long another server may take.
	remoteTimeout = 5 * time.Second
	// remoteFresh is for how long its answer is used again.
	remoteFresh = time.Minute
	// aggregatorUser is who asks; upstream's name.
	aggregatorUser = "system:aggregator"
	// remoteLimit is the size of the largest document.
	remoteLimit = 32 << 20
)

// NewRemotes returns the documents of the servers that APIServices name.
func NewRemotes(cfg Config, server *apiserver.APIAggregator) *Remotes {
	return &Remotes{
		services: server.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister(),
		resolver: cfg.Services, cert: cfg.ProxyCert, key: cfg.ProxyKey, lastIndex: map[string]index{},
	}
}

// Documents implements ondemand.Remotes: it leaves out servers that are not available, that have no
// documents, or that do not answer in time.
func (r *Remotes) Documents(ctx context.Context) []ondemand.Remote {
	all, err := r.services.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err) // impossible: it reads memory
		return nil
	}
	var asked sync.WaitGroup
	out := make([]ondemand.Remote, len(all))
	for i, service := range all {
		if service.Spec.Service == nil || !helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available) {
			continue
		}
		asked.Go(func() { out[i] = r.document(ctx, service) })
	}
	asked.Wait()
	return slices.DeleteFunc(out, func(d ondemand.Remote) bool { return d.Hash == "" })
}

// document asks one server which document it has of its group version.
func (r *Remotes) document(ctx context.Context, service *apiregistrationv1.APIService) ondemand.Remote {
	name := path.Join("apis", service.Spec.Group, service.Spec.Version)
	r.mu.Lock()
	known, ok := r.lastIndex[service.Name]
	r.mu.Unlock()
	if !ok || known.version != service.ResourceVersion || time.Since(known.at) > remoteFresh {
		hash, err := r.hash(ctx, service, name)
		if err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Cannot ask for the OpenAPI documents of another server", "APIService", service.Name)
		}
		known = index{service.ResourceVersion, time.Now(), hash}
		r.mu.Lock()
		r.lastIndex[service.Name] = known
		r.mu.Unlock()
	}
	return ondemand.Remote{
		Name: name, Hash: known.hash,
		V3: func(ctx context.Context, header http.Header) (*http.Response, error) {
			return r.get(ctx, service, "/openapi/v3/"+name, header)
		},
		V2: func(ctx context.Context) (*spec.Swagger, error) { return r.swagger(ctx, service) },
	}
}

// hash returns the hash of a group version's document, or "" if the server has none.
func (r *Remotes) hash(ctx context.Context, service *apiregistrationv1.APIService, name string) (string, error) {
	body, err := r.read(ctx, service, "/openapi/v3")
	if err != nil || body == nil {
		return "", err
	}
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(body, &list); err != nil {
		return "", fmt.Errorf("its index: %w", err)
	}
	at, ok := list.Paths[name]
	if !ok {
		return "", nil
	}
	u, err := url.Parse(at.ServerRelativeURL)
	if err != nil {
		return "", fmt.Errorf("its index: %w", err)
	}
	if hash := u.Query().Get("hash"); hash != "" {
		return hash, nil
	}
	return "unknown", nil
}

func (r *Remotes) swagger(ctx context.Context, service *apiregistrationv1.APIService) (*spec.Swagger, error) {
	body, err := r.read(ctx, service, "/openapi/v2")
	if err != nil {
		return nil, err
	}
	out := &spec.Swagger{}
	if body == nil {
		return out, nil
	}
	if err := out.UnmarshalJSON(body); err != nil {
		return nil, fmt.Errorf("OpenAPI of %s: %w", service.Name, err)
	}
	return out, nil
}

// read returns a document in JSON, or nil if there is none.
func (r *Remotes) read(ctx context.Context, service *apiregistrationv1.APIService, path string) ([]byte, error) {
	resp, err := r.get(ctx, service, path, http.Header{"Accept": {"application/json"}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("%s of %s: %s", path, service.Name, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, remoteLimit+1))
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", path, service.Name, err)
	}
	if len(body) > remoteLimit {
		return nil, fmt.Errorf("%s of %s: it is larger than %d bytes", path, service.Name, remoteLimit)
	}
	return body, nil
}

// get makes a request to the server behind an APIService. The caller closes the body.
func (r *Remotes) get(ctx context.Context, service *apiregistrationv1.APIService, path string, header http.Header) (*http.Response, error) {
	to := service.Spec.Service
	if to.Port == nil {
		return nil, fmt.Errorf("APIService %s: spec.service.port is not set", service.Name)
	}
	u, err := r.resolver.ResolveEndpoint(to.Namespace, to.Name, *to.Port)
	if err != nil {
		return nil, err
	}
	u.Path = path
	cert, key, err := r.credentials()
	if err != nil {
		return nil, err
	}
	trip, err := transport.New(remote.BuildTransportConfig(nil, cert, key, service))
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range []string{"Accept", "If-None-Match"} {
		if v := header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	transport.SetAuthProxyHeaders(req, aggregatorUser, "", nil, nil)
	client := http.Client{
		Transport: trip, Timeout: remoteTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it redirects") },
	}
	return client.Do(req)
}

func (r *Remotes) credentials() (cert, key []byte, err error) {
	if r.cert == "" {
		return nil, nil, nil
	}
	if cert, err = os.ReadFile(r.cert); err != nil {
		return nil, nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	if key, err = os.ReadFile(r.key); err != nil {
		return nil, nil, fmt.Errorf("--proxy-client-key-file: %w", err)
	}
	return cert, key, nil
}

var _ ondemand.Remotes = (*Remotes)(nil)
