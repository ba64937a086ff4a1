package podops

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/safepath"
)

// maxEnvFile is the largest environment file that is read (KEP-3721).
const maxEnvFile = 64 << 10

// fileKey returns a function that reads keys from environment files in the pod's volumes.
func (o *Ops) fileKey(pod *v1.Pod) func(*v1.FileKeySelector) (string, bool, error) {
	return func(sel *v1.FileKeySelector) (string, bool, error) {
		optional := sel.Optional != nil && *sel.Optional
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.Name != sel.VolumeName {
				continue
			}
			path, err := o.Volumes.Path(pod, v)
			if err != nil {
				return "", false, err
			}
			value, found, err := readEnvFile(path, sel.Path, sel.Key)
			switch {
			case os.IsNotExist(err) && optional:
				return "", false, nil
			case err != nil:
				return "", false, fmt.Errorf("couldn't parse env file: %w", err)
			case !found && !optional:
				return "", false, fmt.Errorf("environment variable key %q not found in file %q", sel.Key, sel.Path)
			}
			return value, found, nil
		}
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", sel.VolumeName)
	}
}

func readEnvFile(dir, name, key string) (string, bool, error) {
	if !filepath.IsLocal(name) {
		return "", false, fmt.Errorf("path %q must be relative and must not contain '..'", name)
	}
	root, err := safepath.Open(dir)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Regular(name)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = f.Close() }()
	data, err := safepath.ReadAll(f, maxEnvFile)
	if err != nil {
		return "", false, err
	}
	value, err := criconfig.EnvFileValue(bytes.NewReader(data), key)
	return value, value != "", err
}
