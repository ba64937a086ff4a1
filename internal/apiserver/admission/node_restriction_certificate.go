package admission

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
	authnode "wherry.dev/internal/apiserver/auth/nodeauthorizer"
	"wherry.dev/internal/apiserver/registry"
)

// admitPodCertificate lets a node request only certificates of its own pods, in the name of their
// service accounts. Requests are few, so everything is read from storage itself, and a mismatch is
// refused without a second look.
func (p *nodeRestriction) admitPodCertificate(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return forbid(a, "unexpected operation %v", a.GetOperation())
	}
	if a.GetSubresource() != "" {
		return forbid(a, "unexpected subresource %v", a.GetSubresource())
	}
	req, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	if string(req.Spec.NodeName) != node {
		return forbid(a, "PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", req.Spec.NodeName, node)
	}
	pod := a.GetNamespace() + "/" + req.Spec.PodName
	n, err := registry.GetLive[*corev1.Node](ctx, p.lookup, nodesResource, "", node)
	if err != nil {
		return forbid(a, "while retrieving node %q named in the PodCertificateRequest: %w", node, err)
	}
	if n.UID != req.Spec.NodeUID {
		return forbid(a, "PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", pod, req.Spec.NodeUID, n.UID)
	}
	if err := p.certifiedPod(ctx, a, pod, &req.Spec); err != nil {
		return err
	}
	account, err := registry.GetLive[*corev1.ServiceAccount](ctx, p.lookup, accountsResource, a.GetNamespace(), req.Spec.ServiceAccountName)
	if err != nil {
		return forbid(a, "while retrieving service account %q named in the PodCertificateRequest: %w", a.GetNamespace()+"/"+req.Spec.ServiceAccountName, err)
	}
	if account.UID != req.Spec.ServiceAccountUID {
		return forbid(a, "PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)",
			pod, req.Spec.ServiceAccountUID, account.UID)
	}
	return nil
}

// certifiedPod returns an error unless the pod is the one on the node, and no mirror pod, which the
// node made itself.
func (p *nodeRestriction) certifiedPod(ctx context.Context, a admission.Attributes, name string, spec *certificatesv1.PodCertificateRequestSpec) error {
	pod, err := registry.GetLive[*corev1.Pod](ctx, p.lookup, podsResource, a.GetNamespace(), spec.PodName)
	switch {
	case err != nil:
		return forbid(a, "while retrieving pod %q named in the PodCertificateRequest: %w", name, err)
	case pod.UID != spec.PodUID:
		return forbid(a, "PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", name, spec.PodUID, pod.UID)
	case pod.Spec.NodeName != string(spec.NodeName):
		return forbid(a, "pod %q is not running on node %q named in the PodCertificateRequest", name, spec.NodeName)
	case pods.IsMirror(pod):
		return forbid(a, "pod %q is a mirror pod", name)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return forbid(a, "PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)",
			name, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	return nil
}

// admitSigningRequest lets a node request only kubelet certificates for its own name; the signers
// check the rest.
func admitSigningRequest(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	req, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	if s := req.Spec.SignerName; s != certificatesv1.KubeletServingSignerName && s != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	csr, err := validation.ParseCSR(req.Spec.Request)
	if err != nil {
		return forbid(a, "unable to parse csr: %w", err)
	}
	if want := authnode.UserName(node); csr.Subject.CommonName != want {
		return forbid(a, "can only create a node CSR with CN=%s", want)
	}
	return nil
}
