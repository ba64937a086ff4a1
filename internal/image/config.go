package image

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"wherry.dev/internal/disk"
)

// Config is how a store talks to registries and which images it keeps for ever. The zero value
// stands for the defaults.
type Config struct {
	// CertsDirs hold the configuration of registries, in containerd's layout:
	// <dir>/<host>[_<port>_]/hosts.toml or certificates, and <dir>/_default. The first folder
	// that has the registry is used.
	CertsDirs []string
	// ProgressTimeout ends a pull whose registry sends nothing for that long; 0 means
	// DefaultProgressTimeout.
	ProgressTimeout time.Duration
	// Pinned are references of images that are never garbage-collected, short or in full. As in
	// CRI-O, NAME* matches all that begin with NAME and *NAME* all that contain it.
	Pinned []string
	// KeepFree returns how much of a disk pulls and imports leave free for running containers;
	// nil means nothing.
	KeepFree func(disk.Room) (bytes, inodes uint64)
}

// DefaultProgressTimeout is containerd's image_pull_progress_timeout.
const DefaultProgressTimeout = 5 * time.Minute

// DefaultCertsDirs returns the folders used if none are configured: ours, then those that
// containerd may have left on the machine.
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
		if !strings.Contains(p, "*") {
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

// pins reports whether a full reference is pinned.
func (c Config) pins(ref string) bool {
	if len(c.Pinned) == 0 {
		return false
	}
	short := ref
	if named, err := reference.ParseNormalizedNamed(ref); err == nil {
		short = reference.FamiliarString(named)
	}
	return slices.ContainsFunc(c.Pinned, func(p string) bool { return matches(p, ref) || matches(p, short) })
}

func matches(pattern, ref string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	if !open {
		return pattern == ref
	}
	if inner, ok := strings.CutPrefix(prefix, "*"); ok {
		return strings.Contains(ref, inner)
	}
	return strings.HasPrefix(ref, prefix)
}
