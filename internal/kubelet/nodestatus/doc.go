// Package nodestatus maintains the node's objects in the API: it registers the node, reports its
// status at once when it changes and every few minutes otherwise, and renews its lease. It is the
// only writer of the node's Node and Lease objects.
//
// The lease is the only ticker; each tick also asks the runtime for its condition,
// for which the CRI has no event.
package nodestatus
