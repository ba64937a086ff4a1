package image

import (
	"fmt"

	"github.com/distribution/reference"
)

// Normalize returns a reference in full, as CRI reports it: busybox →
// docker.io/library/busybox:latest. A reference with a tag and a digest keeps only the digest.
func Normalize(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	return named.String(), nil
}

// digestReference returns the reference by digest in the same repository.
func digestReference(ref, digest string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	return named.Name() + "@" + digest, nil
}
