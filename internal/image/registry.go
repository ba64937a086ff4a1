package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/pelletier/go-toml/v2"
	"github.com/sirupsen/logrus"

	"wherry.dev/internal/safepath"
	"wherry.dev/internal/version"
)

// Auth are the credentials of a pull: CRI's AuthConfig, or a docker config.json's.
type Auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Auth          string `json:"auth,omitempty"` // base64 of username:password
	ServerAddress string `json:"serverAddress,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"` // exchanged for access tokens
	RegistryToken string `json:"registryToken,omitempty"` // sent as it is, as a bearer token
}

// login returns the credentials for a host; a secret without a user is a token.
func (a Auth) login(host string) (user, secret string, err error) {
	if !a.isFor(host) {
		return "", "", nil
	}
	switch {
	case a.Username != "":
		return a.Username, a.Password, nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Auth != "":
		doc, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return "", "", fmt.Errorf("credentials: auth is not base64: %w", err)
		}
		user, secret, ok := strings.Cut(string(doc), ":")
		if !ok {
			return "", "", errors.New("credentials: auth is not the base64 of username:password")
		}
		return user, strings.Trim(secret, "\x00"), nil
	}
	return "", "", nil
}

// isFor reports whether the credentials may be sent to a host: to any, unless they name their
// server.
func (a Auth) isFor(host string) bool {
	server := a.ServerAddress
	if server == "" {
		return true
	}
	if u, err := url.Parse(server); err == nil && u.Host != "" {
		server = u.Host
	}
	server, _, _ = strings.Cut(server, "/")
	return server == host || host == "registry-1.docker.io" && (server == "docker.io" || server == "index.docker.io")
}

// registry is what a pull reads from: the hosts that serve one repository.
type registry struct {
	ref      string
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
	close    func() // closes its connections
}

// openRegistry finds the hosts of the reference's registry, its mirrors first. It makes no
// connection yet.
func (s *Store) openRegistry(ctx context.Context, ref string, auth Auth) (*registry, error) {
	var transports []*transport
	hosts := config.ConfigureHosts(ctx, config.HostOptions{
		HostDir:     s.hostDir,
		Credentials: auth.login,
		UpdateClient: func(c *http.Client) error {
			// so that a full series of attempts fits into the timeout
			t := &transport{next: c.Transport, stall: s.cfg.ProgressTimeout / attempts}
			c.Transport, transports = t, append(transports, t)
			return nil
		},
	})
	hosts = plainTokens(hosts)
	r := &registry{ref: ref, resolver: docker.NewResolver(docker.ResolverOptions{
		Hosts: once(withToken(hosts, auth)), Headers: http.Header{"User-Agent": []string{"wherry/" + version.Version}},
	})}
	r.close = func() {
		for _, t := range transports {
			t.CloseIdleConnections()
		}
	}
	var err error
	r.fetcher, err = r.resolver.Fetcher(ctx, ref)
	return r, err
}

// plainTokens makes requests for access tokens not count as part of the blob that needs them.
func plainTokens(hosts docker.RegistryHosts) docker.RegistryHosts {
	return func(name string) ([]docker.RegistryHost, error) {
		list, err := hosts(name)
		for i := range list {
			list[i].Authorizer = tokenAuthorizer{list[i].Authorizer}
		}
		return list, err
	}
}

type tokenAuthorizer struct{ docker.Authorizer }

func (a tokenAuthorizer) Authorize(ctx context.Context, req *http.Request) error {
	return a.Authorizer.Authorize(context.WithValue(ctx, asBlob{}, nil), req)
}

// once makes all requests of a pull share connections and access tokens.
func once(hosts docker.RegistryHosts) docker.RegistryHosts {
	var mu sync.Mutex
	known := map[string][]docker.RegistryHost{}
	return func(name string) ([]docker.RegistryHost, error) {
		mu.Lock()
		defer mu.Unlock()
		if list, ok := known[name]; ok {
			return list, nil
		}
		list, err := hosts(name)
		if err == nil {
			known[name] = list
		}
		return list, err
	}
}

// hostDir finds the folder with a registry's configuration. A hosts.toml that cannot be read is
// an error: silently bypassing a mirror would be a surprise.
func (s *Store) hostDir(host string) (string, error) {
	for _, root := range s.cfg.CertsDirs {
		dir, err := config.HostDirFromRoot(root)(host)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if err := safepath.CheckFiles(dir, ".toml", ".crt", ".cert", ".key"); err != nil {
			return "", err
		}
		return dir, checkHostsFile(filepath.Join(dir, "hosts.toml"))
	}
	return "", errdefs.ErrNotFound
}

func checkHostsFile(path string) error {
	doc, err := safepath.ReadFile(path, safepath.ConfigSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a folder with only certificates
	}
	if err != nil {
		return err
	}
	if err := toml.Unmarshal(doc, &map[string]any{}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// withToken makes the hosts get a ready-made access token instead of a log-in.
func withToken(hosts docker.RegistryHosts, auth Auth) docker.RegistryHosts {
	if auth.RegistryToken == "" {
		return hosts
	}
	return func(name string) ([]docker.RegistryHost, error) {
		list, err := hosts(name)
		for i := range list {
			if auth.isFor(list[i].Host) {
				list[i].Authorizer = bearer(auth.RegistryToken)
			}
		}
		return list, err
	}
}

// bearer is a docker.Authorizer with a token that cannot be renewed.
type bearer string

func (b bearer) Authorize(_ context.Context, req *http.Request) error {
	req.Header.Set("Authorization", "Bearer "+string(b))
	return nil
}

func (b bearer) AddResponses(context.Context, []*http.Response) error {
	return fmt.Errorf("the registry rejected the token: %w", docker.ErrInvalidAuthorization)
}

// quiet silences the transport library's log: what went wrong is in the error.
func quiet(ctx context.Context) context.Context {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return log.WithLogger(ctx, logrus.NewEntry(l))
}

// resolve returns the descriptor of the manifest or index that the reference names.
func (r *registry) resolve(ctx context.Context) (desc ocispec.Descriptor, err error) {
	err = retry(ctx, func() (bool, error) {
		_, desc, err = r.resolver.Resolve(ctx, r.ref)
		return false, err
	})
	return desc, err
}

// read fetches a small document and verifies it.
func (r *registry) read(ctx context.Context, d ocispec.Descriptor) (doc []byte, err error) {
	if d.Size > maxJSON {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", d.Digest, d.Size, maxJSON)
	}
	err = retry(ctx, func() (bool, error) {
		in, err := r.fetcher.Fetch(ctx, d)
		if err != nil {
			return false, err
		}
		doc, err = io.ReadAll(io.LimitReader(in, maxJSON+1))
		return false, errors.Join(err, in.Close())
	})
	if err != nil {
		return nil, err
	}
	return doc, verify(d, doc)
}

// verify checks a document against the descriptor that names it.
func verify(d ocispec.Descriptor, doc []byte) error {
	if err := d.Digest.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	if got := d.Digest.Algorithm().FromBytes(doc); got != d.Digest {
		return fmt.Errorf("%s is corrupt: what the registry sent has the digest %s", d.Digest, got)
	}
	return nil
}

// Limits of what is followed from one reference: nested indexes, and documents read in total.
const (
	maxIndexDepth = 3
	maxManifests  = 100
)

// reader reads small documents by descriptor, and verifies them.
type reader func(ctx context.Context, d ocispec.Descriptor) ([]byte, error)

// pickManifest follows a descriptor to the manifest that suits this machine best. ok is false if
// none does.
func pickManifest(ctx context.Context, d ocispec.Descriptor, read reader) (m ocispec.Manifest, ok bool, err error) {
	p := picker{read: read, top: d.Digest}
	return p.pick(ctx, d, 0)
}

type picker struct {
	read  reader
	top   digest.Digest
	count int // documents read
}

func (p *picker) pick(ctx context.Context, d ocispec.Descriptor, depth int) (m ocispec.Manifest, ok bool, err error) {
	if p.count++; depth > maxIndexDepth || p.count > maxManifests {
		return m, false, fmt.Errorf("index %s is too large: more than %d manifests, or indexes nested more than %d deep", p.top, maxManifests, maxIndexDepth)
	}
	doc, err := p.read(ctx, d)
	if err != nil {
		return m, false, err
	}
	m, children, err := parseManifest(d.Digest, doc)
	if err != nil || len(children) == 0 {
		return m, m.Config.Digest != "", err
	}
	for _, child := range byPlatform(children) {
		if m, ok, err = p.pick(ctx, child, depth+1); ok || err != nil {
			return m, ok, err
		}
	}
	return m, false, nil
}

// parseManifest parses a manifest, or an index of manifests.
func parseManifest(d digest.Digest, doc []byte) (m ocispec.Manifest, children []ocispec.Descriptor, err error) {
	var both struct {
		ocispec.Manifest
		Manifests     []ocispec.Descriptor `json:"manifests"`
		SchemaVersion int                  `json:"schemaVersion"`
	}
	if err := json.Unmarshal(doc, &both); err != nil {
		return m, nil, fmt.Errorf("manifest %s: %w", d, err)
	}
	if both.SchemaVersion != 2 {
		return m, nil, fmt.Errorf("manifest %s has schema version %d; only 2 is supported; rebuild the image", d, both.SchemaVersion)
	}
	if len(both.Manifests) > 0 && (both.Config.Digest != "" || len(both.Layers) > 0) {
		return m, nil, fmt.Errorf("manifest %s claims to be an index as well", d)
	}
	return both.Manifest, both.Manifests, nil
}

// byPlatform returns those that can run on this machine, the best first.
func byPlatform(all []ocispec.Descriptor) []ocispec.Descriptor {
	here := platforms.Default()
	var out []ocispec.Descriptor
	for _, d := range all {
		if d.Platform == nil || here.Match(*d.Platform) {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b ocispec.Descriptor) int {
		switch {
		case a.Platform == nil && b.Platform == nil:
			return 0
		case a.Platform == nil, b.Platform != nil && here.Less(*b.Platform, *a.Platform):
			return 1
		case b.Platform == nil, here.Less(*a.Platform, *b.Platform):
			return -1
		}
		return 0
	})
	return out
}

// open reads a blob from an offset. A registry that does not support ranges sends all of it, and
// what we already have is skipped.
func (r *registry) open(ctx context.Context, d ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	in, err := r.openAt(ctx, d, offset)
	if status, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); !ok || offset == 0 || status.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		return in, err
	}
	if in, err = r.openAt(ctx, d, 0); err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, in, offset); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// openAt sends the request right away, so that its errors show up here.
func (r *registry) openAt(ctx context.Context, d ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	ctx = context.WithValue(ctx, asBlob{}, true)
	in, err := r.fetcher.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	if _, err := in.(io.Seeker).Seek(offset, io.SeekStart); err != nil { //nolint:forcetypeassert // documented as a Seeker
		return nil, errors.Join(err, in.Close())
	}
	if _, err := in.Read(nil); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}
