package podops

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestCredentialsThatFit: each part of the host's name by itself, the most specific first.
func TestCredentialsThatFit(t *testing.T) {
	auths := map[string]dockerAuth{}
	for _, key := range []string{
		"registry.io", "registry.io/team", "https://registry.io/v2/", "*.registry.io", "registry.io:5000", "https://index.docker.io/v1/", "[",
	} {
		auths[key] = dockerAuth{Username: key}
	}
	for image, want := range map[string][]string{
		"registry.io/team/app:1":  {"https://registry.io/v2/", "registry.io/team", "registry.io"},
		"registry.io/teams/app":   {"https://registry.io/v2/", "registry.io"},
		"a.registry.io/app":       {"*.registry.io"},
		"a.b.registry.io/app":     nil,
		"registry.io:5000/app":    {"registry.io:5000"},
		"busybox":                 {"https://index.docker.io/v1/"},
		"docker.io/library/nginx": {"https://index.docker.io/v1/"},
		"other.io/app":            nil,
		"Not An Image":            nil,
	} {
		var got []string
		for _, m := range matches(auths, image) {
			got = append(got, m.auth.Username)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

func TestPullSecrets(t *testing.T) {
	for name, tc := range map[string]struct {
		kind v1.SecretType
		data map[string][]byte
		want int
		bad  bool
	}{
		"json":         {v1.SecretTypeDockerConfigJson, map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"a.io":{"auth":"dTpw"}}}`)}, 1, false},
		"older":        {v1.SecretTypeDockercfg, map[string][]byte{v1.DockerConfigKey: []byte(`{"a.io":{"username":"u"},"b.io":{}}`)}, 2, false},
		"empty":        {v1.SecretTypeDockerConfigJson, nil, 0, false},
		"another kind": {v1.SecretTypeOpaque, map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"a.io":{}}}`)}, 0, false},
		"nonsense":     {v1.SecretTypeDockerConfigJson, map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":"hunter2"`)}, 0, true},
		"old nonsense": {v1.SecretTypeDockercfg, map[string][]byte{v1.DockerConfigKey: []byte(`"hunter2"`)}, 0, true},
	} {
		auths, err := secretAuths(&v1.Secret{Type: tc.kind, Data: tc.data})
		if len(auths) != tc.want || tc.bad != (err != nil) || tc.bad && err.Error() != "not a valid Docker configuration" {
			t.Errorf("%s: %v, %v", name, auths, err)
		}
	}
	got := matches(map[string]dockerAuth{"a.io": {Auth: "dTpw"}}, "a.io/x")
	if len(got) != 1 || got[0].auth.Username != "u" || got[0].auth.Password != "p" {
		t.Errorf("%+v", got)
	}
}
