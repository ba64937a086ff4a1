package image

import (
	"fmt"
	"strings"
	"time"
)

// Config is how a store talks to registries and which images it keeps for ever. The
// zero value has the defaults.
type Config struct {
	// CertsDirs hold what is to be known about registries, in containerd's layout:
	// <dir>/<host>[_<port>_]/hosts.toml or certificates, and <dir>/_default. The
	// first folder that knows a registry counts.
	CertsDirs []string
	// ProgressTimeout ends a pull whose registry sends nothing for so long;
	// 0 is DefaultProgressTimeout.
	ProgressTimeout time.Duration
	// Pinned are references of images that are never garbage-collected; one that
	// ends with * means all that begin so.
	Pinned []string
}

// DefaultProgressTimeout is containerd's image_pull_progress_timeout.
const DefaultProgressTimeout = 5 * time.Minute

// DefaultCertsDirs are looked at when nothing else is configured: ours, then what the
// machine may have from containerd.
func DefaultCertsDirs() []string {
	return []string{"/etc/wherry/certs.d", "/etc/containerd/certs.d"}
}

func (c Config) withDefaults() (Config, error) {
	if c.CertsDirs == nil {
		c.CertsDirs = DefaultCertsDirs()
	}
	if c.ProgressTimeout == 0 {
		c.ProgressTimeout = DefaultProgressTimeout
	}
	if c.ProgressTimeout < 0 {
		return c, fmt.Errorf("image pull progress timeout %s: it must be positive", c.ProgressTimeout)
	}
	pinned := make([]string, 0, len(c.Pinned))
	for _, p := range c.Pinned {
		if !strings.HasSuffix(p, "*") {
			full, err := Normalize(p)
			if err != nil {
				return c, fmt.Errorf("pinned image: %w", err)
			}
			p = full
		}
		pinned = append(pinned, p)
	}
	c.Pinned = pinned
	return c, nil
}

// pins tells whether a reference is one of the pinned.
func (c Config) pins(ref string) bool {
	for _, p := range c.Pinned {
		if prefix, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(ref, prefix) || p == ref {
			return true
		}
	}
	return false
}
