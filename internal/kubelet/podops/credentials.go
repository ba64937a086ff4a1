package podops

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dockerConfig is a .dockerconfigjson, or in its older form just the auths.
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

// credentials returns those of the pod's pull secrets and of the node that fit an
// image, the most specific first.
func (o *Ops) credentials(ctx context.Context, pod *v1.Pod, image string) ([]*runtimeapi.AuthConfig, error) {
	var found []match
	lost := []string(nil)
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := o.Objects.For(ctx).Secret(pod.Namespace, ref.Name)
		if err != nil {
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
				lost = append(lost, ref.Name)
				continue
			}
			return nil, err
		}
		auths, err := secretAuths(secret)
		if err != nil {
			return nil, fmt.Errorf("pull secret %s: %w", ref.Name, err)
		}
		found = append(found, matches(auths, image)...)
	}
	if len(lost) > 0 {
		o.event(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(lost, ", "))
	}
	node, err := o.nodeAuths()
	if err != nil {
		return nil, err
	}
	found = append(found, matches(node, image)...)
	slices.SortStableFunc(found, func(a, b match) int { return cmp.Compare(len(b.key), len(a.key)) })
	out := make([]*runtimeapi.AuthConfig, 0, len(found))
	for _, m := range found {
		out = append(out, m.auth)
	}
	return out, nil
}

func (o *Ops) nodeAuths() (map[string]dockerAuth, error) {
	if o.DockerConfig == "" {
		return nil, nil
	}
	data, err := os.ReadFile(o.DockerConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseDockerConfig(data)
}

func secretAuths(s *v1.Secret) (map[string]dockerAuth, error) {
	switch s.Type {
	case v1.SecretTypeDockerConfigJson:
		return parseDockerConfig(s.Data[v1.DockerConfigJsonKey])
	case v1.SecretTypeDockercfg:
		auths := map[string]dockerAuth{}
		err := json.Unmarshal(s.Data[v1.DockerConfigKey], &auths)
		return auths, err
	default:
		return nil, nil
	}
}

// parseDockerConfig reads the auths of a Docker configuration.
func parseDockerConfig(data []byte) (map[string]dockerAuth, error) {
	var cfg dockerConfig
	if err := json.Unmarshal(data, &cfg); err != nil {
		// The decoder's message could quote the secret.
		return nil, errors.New("not a valid Docker configuration")
	}
	return cfg.Auths, nil
}

type match struct {
	key  string
	auth *runtimeapi.AuthConfig
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
		out = append(out, match{key, auth})
	}
	return out
}

func keyFits(key, domain, repo string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, prefix, _ := strings.Cut(key, "/")
	prefix = strings.Trim(strings.TrimPrefix(strings.TrimPrefix(prefix, "v1"), "v2"), "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	if ok, err := path.Match(host, domain); err != nil || !ok && host != domain {
		return false
	}
	return prefix == "" || repo == prefix || strings.HasPrefix(repo, prefix+"/")
}
