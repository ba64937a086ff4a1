// Package pods is the vocabulary of pods: what the fields and annotations of a pod mean, and the
// names by which others know its parts. The API server, the scheduler, the controllers and the
// kubelet share it, so that they cannot disagree. It is pure: it reads the API types and does
// nothing else. A pod's quality-of-service class is not here: that is k8s.io/kubectl/pkg/util/qos.
package pods
