// Package dns answers for the names of the cluster, as the Kubernetes DNS specification 1.1 has them,
// and forwards all other questions to the resolvers of the node.
//
// A question takes this way:
//
//	client ─▶ Server      who may ask, what is a question, how large an answer may be
//	            ├─▶ Zone  names below the cluster's domain and addresses of the cluster, from Records
//	            └─▶ Forwarder ─▶ cache ─▶ the resolvers of a stub domain, or those of the node
//
// Records has no state of its own: it looks into the stores of informers that run anyway, so an answer
// is as new as they are. Until they have synced, names of the cluster get SERVFAIL and clients retry:
// NXDOMAIN would say that a service does not exist.
package dns
