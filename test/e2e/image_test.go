package e2e

import v1 "github.com/google/go-containerregistry/pkg/v1"

func imageConfig() v1.Config {
	return v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/bin:/usr/bin"}}
}
