package podops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/pullrecord"
	"wherry.dev/internal/safepath"
)

// dockerConfig is a .dockerconfigjson, or just its auths in the older format.
type dockerConfig struct {
	Auths map[string]dockerAuth `json:"auths"`
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// credentials returns the credentials that fit an image: those of the pod's pull secrets, then the
// node's, then those of its credential provider plugins, each group with the most specific first.
func (o *Ops) credentials(ctx context.Context, pod *v1.Pod, image string) ([]match, error) {
	var found []match
	lost := []string(nil)
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue // the API allows an empty name
		}
		secret, err := o.Objects.For(ctx).Secret(pod.Namespace, ref.Name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			lost = append(lost, ref.Name)
			continue
		}
		auths, err := secretAuths(secret)
		if err != nil {
			return nil, fmt.Errorf("pull secret %s: %w", ref.Name, err)
		}
		for _, m := range matches(auths, image) {
			m.access.Secret = &kubeletconfig.ImagePullSecret{
				UID: string(secret.UID), Namespace: secret.Namespace, Name: secret.Name, CredentialHash: hashOf(m.auth),
			}
			found = append(found, m)
		}
	}
	if len(lost) > 0 {
		o.event(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(lost, ", "))
	}
	sortMatches(found)
	node, err := o.nodeAuths()
	if err != nil {
		return nil, err
	}
	found = append(found, matches(node, image)...)
	return o.fromPlugins(ctx, pod, image, found)
}

// sortMatches sorts the most specific first, and keeps the order of equally specific ones.
func sortMatches(m []match) {
	slices.SortStableFunc(m, func(a, b match) int { return cmp.Or(cmp.Compare(len(b.key), len(a.key)), cmp.Compare(b.key, a.key)) })
}

func (o *Ops) fromPlugins(ctx context.Context, pod *v1.Pod, image string, found []match) ([]match, error) {
	if o.Plugins == nil {
		return found, nil
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, err
	}
	for _, c := range o.Plugins.For(ctx, pod, reference.TrimNamed(named).Name()) {
		m := match{key: c.Pattern, auth: &runtimeapi.AuthConfig{Username: c.Username, Password: c.Password}}
		if a := c.Account; a != nil {
			m.access.Account = &kubeletconfig.ImagePullServiceAccount{UID: string(a.UID), Namespace: a.Namespace, Name: a.Name}
		}
		found = append(found, m)
	}
	return found, nil
}

// hashOf returns a hash that tells two credentials apart without keeping them.
func hashOf(a *runtimeapi.AuthConfig) string {
	data, err := json.Marshal([]string{a.Username, a.Password, a.IdentityToken, a.RegistryToken})
	if err != nil {
		return "" // strings always marshal
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

func (o *Ops) nodeAuths() (map[string]dockerAuth, error) {
	if o.DockerConfig == "" {
		return nil, nil
	}
	data, err := safepath.ReadFile(o.DockerConfig, safepath.ConfigSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseDockerConfig(data)
}

func secretAuths(s *v1.Secret) (map[string]dockerAuth, error) {
	full, old := s.Data[v1.DockerConfigJsonKey], s.Data[v1.DockerConfigKey]
	switch {
	case s.Type == v1.SecretTypeDockerConfigJson && len(full) > 0:
		return parseDockerConfig(full)
	case s.Type == v1.SecretTypeDockercfg && len(old) > 0:
		auths := map[string]dockerAuth{}
		if json.Unmarshal(old, &auths) != nil {
			return nil, errDockerConfig
		}
		return auths, nil
	default:
		return nil, nil
	}
}

// errDockerConfig gives no detail: the decoder's message could quote the secret.
var errDockerConfig = errors.New("not a valid Docker configuration")

// parseDockerConfig reads the auths of a Docker configuration.
func parseDockerConfig(data []byte) (map[string]dockerAuth, error) {
	var cfg dockerConfig
	if json.Unmarshal(data, &cfg) != nil {
		return nil, errDockerConfig
	}
	return cfg.Auths, nil
}

// match is a credential that fits an image.
type match struct {
	key    string
	auth   *runtimeapi.AuthConfig
	access pullrecord.Access // whose credential it is
}

// matches returns the auths whose key is the image's registry, or a prefix of its path.
func matches(auths map[string]dockerAuth, image string) []match {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	var out []match
	for key, a := range auths {
		if !keyFits(key, reference.Domain(named), reference.Path(named)) {
			continue
		}
		auth := &runtimeapi.AuthConfig{
			Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
		}
		if a.Auth != "" && auth.Username == "" {
			if text, err := base64.StdEncoding.DecodeString(a.Auth); err == nil {
				auth.Username, auth.Password, _ = strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
			}
		}
		out = append(out, match{key: key, auth: auth})
	}
	sortMatches(out)
	return out
}

func keyFits(key, domain, repo string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, prefix, _ := strings.Cut(key, "/")
	prefix = strings.Trim(strings.TrimPrefix(strings.TrimPrefix(prefix, "v1"), "v2"), "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	if !credential.Matches(host, domain) {
		return false
	}
	return prefix == "" || repo == prefix || strings.HasPrefix(repo, prefix+"/")
}
