// Package clusterinfo has what nodes need before they have credentials: the config map kube-public/cluster-info, signed
// with each bootstrap token, so that a node that knows only a token can tell whether it is the cluster's; the config map
// kube-system/wherry-cluster with what nodes have to agree on; and the end of tokens whose time is over.
//
// It does what upstream's controllers bootstrap-signer and token-cleaner do, and what kubeadm does once.
package clusterinfo
