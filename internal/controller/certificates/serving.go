package certificates

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/nodes"
)

// Kubelets is what approval has to know of the cluster, in order to approve serving certificates of kubelets, and to give
// nobody the name of a node that is alive. Upstream's controller approves no serving certificates.
type Kubelets struct {
	nodes  corelisters.NodeLister
	slices discoverylisters.EndpointSliceLister
	// servers are names of API servers, besides those that all have.
	servers []string
}

// NewKubelets returns it, with the informers of f. servers are names by which clients find API servers.
func NewKubelets(f informers.SharedInformerFactory, servers []string) *Kubelets {
	nodes, own := f.Core().V1().Nodes(), f.Discovery().V1().EndpointSlices()
	own.Informer() // so that it is started
	return &Kubelets{nodes: nodes.Lister(), slices: own.Lister(), servers: servers}
}

// alive reports whether a node is Ready.
func (k *Kubelets) alive(name string) (bool, error) {
	n, err := k.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && nodes.IsReady(n), err
}

// checkServing returns nil if a kubelet may have the serving certificate that it asks for: it has to be for names and
// addresses of its node, which neither another node nor an API server has. A node says itself which addresses it has, and
// the certificate is of the authority that API servers have theirs of: without the second rule a node could be all others.
func (k *Kubelets) checkServing(req *x509.CertificateRequest, r *certificatesv1.CertificateSigningRequest) error {
	if err := checkKubeletServing(req, r.Spec.Usages); err != nil {
		return err
	}
	if r.Spec.Username != req.Subject.CommonName {
		return fmt.Errorf("it is for %s", req.Subject.CommonName)
	}
	name := strings.TrimPrefix(req.Subject.CommonName, "system:node:")
	n, err := k.nodes.Get(name)
	if err != nil {
		return err
	}
	for _, dns := range req.DNSNames {
		if !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == dns }) {
			return fmt.Errorf("its node does not have the name %s", dns)
		}
		if k.reserved(dns) {
			return fmt.Errorf("the name %s is the API server's", dns)
		}
	}
	for _, ip := range req.IPAddresses {
		if !hasIP(n, ip) {
			return fmt.Errorf("its node does not have the address %s", ip)
		}
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() {
			return fmt.Errorf("the address %s is not one of a single machine", ip)
		}
	}
	return k.free(name, req)
}

// reserved reports whether a name is one by which clients find the API server.
func (k *Kubelets) reserved(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(k.servers, func(s string) bool { return strings.EqualFold(s, name) }) || name == "localhost" || name == "kubernetes" || strings.HasPrefix(name, "kubernetes.")
}

func hasIP(n *corev1.Node, ip net.IP) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		return ip.Equal(net.ParseIP(a.Address))
	})
}

// free returns an error that names who else has a name or an address.
func (k *Kubelets) free(name string, req *x509.CertificateRequest) error {
	nodes, err := k.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Name == name {
			continue
		}
		for _, a := range n.Status.Addresses {
			ip := net.ParseIP(a.Address)
			if slices.Contains(req.DNSNames, a.Address) || ip != nil && slices.ContainsFunc(req.IPAddresses, ip.Equal) {
				return fmt.Errorf("node %s has the address %s, too", n.Name, a.Address)
			}
		}
	}
	servers, err := k.slices.EndpointSlices(metav1.NamespaceDefault).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}))
	if err != nil {
		return err
	}
	for _, s := range servers {
		for i := range s.Endpoints {
			for _, a := range s.Endpoints[i].Addresses {
				if ip := net.ParseIP(a); ip != nil && slices.ContainsFunc(req.IPAddresses, ip.Equal) {
					return fmt.Errorf("an API server has the address %s, too", a)
				}
			}
		}
	}
	return nil
}

// approveServing approves a kubelet's request for a serving certificate.
func (c *Controller) approveServing(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	req, err := parseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: %w", r.Name, err)
	}
	if err := c.kubelets.checkServing(req, r); err != nil {
		klog.FromContext(ctx).Info("A kubelet's request for a serving certificate needs manual approval", "csr", r.Name, "user", r.Spec.Username, "reason", err)
		c.await(r.Name) // the node may have the addresses soon, or nobody else
		return nil
	}
	return c.markApproved(ctx, r, "Auto approving kubelet serving certificate: its names and addresses are those of its node alone.")
}
