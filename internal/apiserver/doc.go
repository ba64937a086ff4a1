// Package apiserver is Wherry's Kubernetes API server, built on k8s.io/apiserver with storage in an
// etcd of the same process (or an external one, with --etcd-servers).
//
// A request goes through authentication → authorization → decoding and defaulting → mutating
// admission → validation → validating admission → etcd, as it does upstream. This package has the
// configuration, and puts the chain of servers together: aggregation → kinds → extensions → not found
// (docs/architecture.md). What they are made from lives in the folders below: registry (what each
// resource is, one row of a table each), admission and hooks, auth, bootstrap, loopback, openapi, storage
// and scheme.
//
// New opens the data and binds the port; Run serves until its context ends. The package knows
// nothing of the other components. Those in the same process talk to it as ordinary, authorized
// users, only without a socket: see Server.ClientConfig.
package apiserver
