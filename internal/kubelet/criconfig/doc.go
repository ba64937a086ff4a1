// Package criconfig turns a pod into the configurations that the CRI needs for its sandbox and
// containers, and into the names that its parts have on the node: labels, log paths, cgroups,
// environment, DNS, security context, resources. It is pure except for what its callers pass in
// (looked-up objects, file contents).
package criconfig
