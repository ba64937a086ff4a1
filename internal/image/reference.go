package image

import (
	"fmt"

	"github.com/distribution/reference"
)

// Normalize writes a reference out in full, as the CRI reports it:
// busybox → docker.io/library/busybox:latest. A reference with tag and digest
// keeps the digest only.
func Normalize(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	return named.String(), nil
}

// digestReference is the reference of the same repository by digest.
func digestReference(ref, digest string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	return named.Name() + "@" + digest, nil
}
