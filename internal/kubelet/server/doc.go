// Package server is the kubelet's API on port 10250: logs, exec, attach and port-forward for
// people, metrics and statistics for machines, and, for debugging, what the kubelet itself sees,
// decided and does.
//
// Every request is authenticated (client certificate or TokenReview) and authorized
// (SubjectAccessReview on a subresource of the node). Streams are proxied to the address that the
// runtime returns; the server keeps no state of its own.
package server
