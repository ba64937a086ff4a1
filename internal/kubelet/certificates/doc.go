// Package certificates gets the kubelet's certificates from the API server: the first client
// certificate, with a bootstrap kubeconfig, and new ones for client and server before the old ones
// expire (KEP-266, KEP-267).
//
// All are stored in one directory as NAME-current.pem, a link to the newest pair of certificate and
// key. The names, and the kubeconfig that is written, are upstream's.
package certificates
