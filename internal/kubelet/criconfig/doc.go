// Package criconfig turns a pod into the configurations that the CRI wants for its
// sandbox and containers, and into the names that its parts have on the node:
// labels, log paths, cgroups, environment, DNS, security context, resources. It is
// pure but for what its callers hand in (looked-up objects, file contents).
package criconfig
