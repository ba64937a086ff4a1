package hollow

import (
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

const (
	// AnnotationExitAfter on a pod is how long its containers run before they end by themselves.
	// Without it they run until they are stopped.
	AnnotationExitAfter = "wherry.dev/hollow-exit-after"
	// AnnotationExitCode is what they end with then, 0 by default.
	AnnotationExitCode = "wherry.dev/hollow-exit-code"
)

// ending is how a container ends by itself.
type ending struct {
	after time.Duration
	code  int32
}

// endingOf returns how a container of a pod ends by itself; nil if it runs until it is stopped. Init
// containers complete at once, since the others wait for them.
func endingOf(pod *v1.Pod, c *v1.Container) (*ending, error) {
	switch {
	case pods.IsSidecar(c), pods.IsEphemeral(pod, c.Name):
		return nil, nil
	case pods.IsInit(pod, c.Name):
		return &ending{}, nil
	}
	text, ok := pod.Annotations[AnnotationExitAfter]
	if !ok {
		return nil, nil
	}
	after, err := time.ParseDuration(text)
	if err != nil || after < 0 {
		return nil, fmt.Errorf("annotation %s: %q is not a duration; write it as 90s or 1h30m", AnnotationExitAfter, text)
	}
	code, err := exitCode(pod)
	return &ending{after, code}, err
}

func exitCode(pod *v1.Pod) (int32, error) {
	text, ok := pod.Annotations[AnnotationExitCode]
	if !ok {
		return 0, nil
	}
	code, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("annotation %s: %q is not an exit code; give a number from 0 to 255", AnnotationExitCode, text)
	}
	return int32(code), nil
}
